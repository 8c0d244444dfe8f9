"""Network training saved at every update, killed at random moments of a seed and resumed; compared with a plain run.

python -m tests.fault.kill_network_trainer FOLDER SEED
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.fault.forked import Child, moments, told_by_child
from tests.support.resumable import fit, saved_state, weights

KILLS = 6


def train(state, target):
    """Train from the state, if it exists; write the weights to a file."""
    torch.set_num_threads(1)
    save_file(weights(fit(state)), target)


def saved_at(state):
    """Return the time of the last save; 0 if there is none."""
    return state.stat().st_mtime_ns if state.exists() else 0


def step_of(state):
    """Return the step of the saved run; reading it checks its hash."""
    return saved_state(state)["step"]


def difference(folder):
    """Return the names of tensors that are not bit-identical, and the number compared."""
    expected, found = (load_file(folder / name) for name in ("peace", "killed"))
    assert expected.keys() == found.keys()
    return [[name for name in expected if not torch.equal(expected[name], found[name])], len(expected)]


def main(folder, seed):
    """Kill and resume, then let one run finish."""
    state, steps, killed = folder / "state.pt", [], 0
    for moment_s in moments(seed, KILLS, 0.1):
        before = saved_at(state)
        child = Child(lambda: train(state, folder / "killed"))
        killed += child.kill_after(lambda before=before: saved_at(state) > before, moment_s)
        steps.append(told_by_child(lambda: step_of(state)))
    assert Child(lambda: train(state, folder / "killed")).wait() == 0
    assert Child(lambda: train(None, folder / "peace")).wait() == 0
    told = {"steps": steps, "killed": killed, "differing": told_by_child(lambda: difference(folder))}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
