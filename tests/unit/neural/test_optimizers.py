"""Which optimiser, and what decays."""

import pytest
import torch

from models.neural.config import NetworkConfig
from models.neural.network import Network
from training.neural.optimization import make_optimizer
from training.neural.settings import TrainSettings

NAMES = ["adamw", "adam", "sgd", "rmsprop"]


@pytest.fixture
def network():
    return Network(
        NetworkConfig(embedding_size=5, hidden_size=7, layers=2, layer_norm=True, learned_state=True), 9
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_updated_once(network, name):
    optimizer = make_optimizer(network, TrainSettings(optimizer=name))
    updated = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in updated} == {id(p) for p in network.parameters()}
    assert len(updated) == len({id(p) for p in updated})


@pytest.mark.parametrize("name", NAMES)
def test_matrices_decay_and_nothing_else_does(network, name):
    """Without a gradient but that of the decay, only matrices move."""
    for parameter in network.parameters():
        parameter.data.fill_(1.0)
        parameter.grad = torch.zeros_like(parameter)
    make_optimizer(network, TrainSettings(optimizer=name, weight_decay=0.1)).step()
    for parameter in network.parameters():
        assert bool((parameter != 1).all()) == (parameter.ndim == 2)


def test_settings_reach_the_optimiser(network):
    adam = make_optimizer(network, TrainSettings(optimizer="adam", betas=(0.5, 0.7))).param_groups[0]
    sgd = make_optimizer(network, TrainSettings(optimizer="sgd", momentum=0.3)).param_groups[0]
    assert adam["betas"] == (0.5, 0.7)
    assert sgd["momentum"] == 0.3
