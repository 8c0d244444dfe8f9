"""SIGKILL the trainer of networks, and resume: the weights are those of a run that was left in peace."""

import os
import random
import subprocess
import sys
import time

import torch
from safetensors.torch import load_file

from tests.resumable import fit, weights

KILLS = 3


def test_killed_anywhere_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path):
    """SIGKILL, several times at random moments; the state is saved at every update."""
    state, result = tmp_path / "state.pt", tmp_path / "weights.safetensors"
    command = [sys.executable, "-m", "tests.resumable", str(state), str(result)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # noqa: TID251 - a process like this one
    for _ in range(KILLS):
        process = subprocess.Popen(command, env=environment)
        before = state.stat().st_mtime_ns if state.exists() else 0
        while process.poll() is None and not (state.exists() and state.stat().st_mtime_ns > before):
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.3))
        process.kill()
        process.wait()
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = weights(fit())
    torch.set_num_threads(threads)
    assert expected.keys() == (found := load_file(result)).keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
