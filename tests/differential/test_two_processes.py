"""Two processes that train one network, started by torchrun, beside one."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.resumable import SETTINGS, fit, weights
from training.neural.resume import StateFile

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]


def started(*arguments):
    """A finished program that torchrun started twice."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # noqa: TID251 - a process like this one
    return subprocess.run(
        [*TORCHRUN, *arguments], env=environment, check=False, capture_output=True, text=True, timeout=200
    )


def in_two_processes(folder, **changes):
    """The weights that two processes come to."""
    done = started("tests.resumable", str(folder / "state"), str(folder / "w"), json.dumps(changes))
    assert done.returncode == 0, done.stderr
    return load_file(folder / "w")


@pytest.mark.parametrize("loss", ["softmax", "sampled"])
def test_two_processes_come_to_the_weights_of_one(tmp_path, loss):
    """With dropout of all kinds, penalties, averages, lengths that vary; up to rounding."""
    changes = {"loss": loss, "samples": 12} if loss == "sampled" else {"loss": loss}
    together = in_two_processes(tmp_path, max_steps=12, **changes)
    alone = weights(fit(max_steps=12, **changes))
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor, rtol=1e-4, atol=1e-5)


def test_one_process_goes_on_with_what_two_began(tmp_path):
    """The state that the first one saves holds the carried state of all."""
    in_two_processes(tmp_path, max_steps=6)
    assert StateFile(tmp_path / "state").read()["hidden"][0].shape[1] == SETTINGS["batch_size"]
    resumed = fit(tmp_path / "state", max_steps=12)
    assert resumed.history[-1].step == 12
