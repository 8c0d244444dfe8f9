"""Two processes that train one network, started by torchrun, compared with one process."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.support.resumable import SETTINGS, fit, saved_state, weights
from tests.support.trained_together import RUNS, state_file, weights_file

pytestmark = pytest.mark.long
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Train with two processes; return the folder of the results."""
    folder = tmp_path_factory.mktemp("together")
    command = [*TORCHRUN, "tests.support.trained_together", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("loss", ["softmax", "sampled"])
def test_two_processes_come_to_the_weights_of_one(together, loss):
    """With every kind of dropout, penalties, averages, varying lengths; up to rounding."""
    alone = weights(fit(**RUNS[loss]))
    shared = load_file(weights_file(together, loss))
    for name, tensor in alone.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-4, atol=1e-5)


def test_one_process_goes_on_with_what_two_began(together):
    """The state saved by the first process contains the carried state of all."""
    state = state_file(together, "begun")
    assert saved_state(state)["hidden"][0].shape[1] == SETTINGS["batch_size"]
    resumed = fit(state, max_steps=12)
    assert resumed.history[-1].step == 12
