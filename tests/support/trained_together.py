"""Several small training runs in sequence, each distributed over all processes, as a program for torchrun.

python -m tests.support.trained_together FOLDER
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.resumable import fit, weights
from training.neural.distributed import Processes, join_processes

RUNS = {
    "softmax": {"loss": "softmax", "max_steps": 12},
    "sampled": {"loss": "sampled", "samples": 12, "max_steps": 12},
    "begun": {"max_steps": 6},
}
"""Changes of each run to `tests.support.resumable.SETTINGS`, by the name of its files."""


def state_file(folder, run):
    """File of a run's training state."""
    return Path(folder) / f"{run}.state"


def weights_file(folder, run):
    """File of a run's final weights."""
    return Path(folder) / f"{run}.safetensors"


if __name__ == "__main__":
    with join_processes(torch.device("cpu")):
        for run, changes in RUNS.items():
            done = fit(state_file(sys.argv[1], run), **changes)
            if Processes.current().is_leader:
                save_file(weights(done), weights_file(sys.argv[1], run))
