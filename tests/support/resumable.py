"""Small training run with every source of randomness, as a program for torchrun and for kill tests.

python -m tests.support.resumable STATE_FILE WEIGHTS_FILE [SETTINGS AS JSON [PATIENCE IN SECONDS]]
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from models.language_model import Vocabulary
from models.neural.config import NetworkConfig
from training.corpus import EncodedCorpus
from training.neural import distributed
from training.neural.distributed import Processes, join_processes
from training.neural.resume import parse_state
from training.neural.settings import TrainSettings
from training.neural.trainer import train_network
from training.progress import Progress
from training.recipe import Recipe

VOCABULARY = Vocabulary([f"w{i}" for i in range(40)])
NETWORK = NetworkConfig(
    layers=2,
    embedding_size=16,
    hidden_size=16,
    dropout=0.3,
    embedding_dropout=0.1,
    weight_drop=0.2,
    learned_state=True,
)
SETTINGS = {
    "batch_size": 8,
    "bptt_length": 12,
    "variable_bptt": True,
    "shuffle_block": 12,
    "max_minutes": None,
    "max_steps": 60,
    "epochs": 100,
    "reset": 0.3,
    "dropout_start": 0.5,
    "average": "ema",
    "activation_penalty": 1.0,
    "slowness_penalty": 1.0,
    "loss": "sampled",
    "samples": 12,
    "validations": 30,
    "patience": 30,
    "save_minutes": 0,
    "precision": "float32",
}


def corpus(seed):
    """Sentences in which each word depends on its predecessor."""
    random = np.random.default_rng(seed)
    return EncodedCorpus.from_sentences(
        [(np.cumsum(random.integers(0, 5, random.integers(3, 15))) % 40 + 3).tolist() for _ in range(150)]
    )


def fit(
    state_file=None,
    *,
    progress=None,
    resume=True,
    network=NETWORK,
    seed=1,
    texts=(1, 2),
    soft_targets=None,
    base=None,
    device="cpu",
    **changes,
):
    """Train, from the saved state if it exists."""
    return train_network(
        corpus(texts[0]),
        corpus(texts[1]),
        VOCABULARY,
        Recipe(family="neural", seed=seed, neural=network, train=TrainSettings(**(SETTINGS | changes))),
        device=device,
        progress=progress or Progress(),
        soft_targets=soft_targets,
        base=base,
        state_file=state_file,
        resume=resume,
    )


def saved_state(path):
    """Training state saved in a file."""
    return parse_state(path, path.read_bytes())


def weights(result):
    """Weights by name, without the second name of a tied matrix."""
    tensors = dict(result.model.network.state_dict())
    return {name: tensor for name, tensor in tensors.items() if name != "output.weight"}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 4:
        distributed.PATIENCE_S = float(sys.argv[4])
    with join_processes(torch.device("cpu")):
        done = fit(Path(sys.argv[1]), **json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}"))
        if Processes.current().is_leader:
            save_file(weights(done), sys.argv[2])


class Ending(Progress):
    """Progress that raises KeyboardInterrupt after a number of updates."""

    def __init__(self, updates):
        self.left = updates + 1

    def advance(self, _=1, note=""):
        self.left -= 1
        if note and self.left <= 0:
            raise KeyboardInterrupt
