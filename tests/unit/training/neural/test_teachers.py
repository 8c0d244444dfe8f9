"""Networks that learn from teachers: the trainer, exact resuming, mixtures and published models."""

import json

import numpy as np
import pytest
import torch

from models.arrays import to_numpy
from models.checkpoint.load import load_checkpoint
from models.errors import InvalidInputError
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from tests.support.resumable import NETWORK, VOCABULARY, corpus, fit, weights
from training.commands import run_train
from training.evaluation.evaluate import evaluate
from training.mixture import part_recipes, published_teachers
from training.neural.settings import TrainSettings
from training.neural.soft_targets import SoftTargets, write_soft_targets
from training.neural.trainer import train_network
from training.progress import SILENT, Progress
from training.recipe import load_recipe, parse_recipe, recipe_table
from training.side_by_side import divide_minutes, training_waves

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """Soft targets of an untrained network for the text of `tests.support.resumable`."""
    torch.manual_seed(5)
    teacher = NeuralModel(Network(NETWORK, len(VOCABULARY)), VOCABULARY)
    path = tmp_path_factory.mktemp("taught") / "targets.npy"
    write_soft_targets(path, [teacher], corpus(1), device=CPU, precision=torch.float32, progress=SILENT)
    return SoftTargets(path, "digest", ("teacher",))


class Ending(Progress):
    """Progress that raises KeyboardInterrupt after a number of updates."""

    def __init__(self, updates):
        self.left = updates + 1

    def advance(self, _=1, note=""):
        self.left -= 1
        if note and self.left <= 0:
            raise KeyboardInterrupt


FULL = {"loss": "softmax", "teacher": ("teacher",), "teacher_weight": 0.6}


def test_a_resumed_run_with_a_teacher_is_equal_bit_for_bit(tmp_path, taught):
    state_file = tmp_path / "runs" / "state.pt"
    whole = fit(soft_targets=taught, **FULL)
    for updates in (1, 17, 30):
        interrupted = fit(state_file, progress=Ending(updates), soft_targets=taught, **FULL)
        assert interrupted.stopped == "interrupted"
    with pytest.raises(InvalidInputError, match="the teacher has changed"):
        fit(state_file, soft_targets=taught._replace(digest="other"), **FULL)
    resumed = fit(state_file, soft_targets=taught, **FULL)
    first, second = weights(whole), weights(resumed)
    assert all(torch.equal(first[name], second[name]) for name in first)
    untaught = weights(fit(loss="softmax"))
    assert not all(torch.equal(first[name], untaught[name]) for name in first)
