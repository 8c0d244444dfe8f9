"""Activation regularisation: gradients against autograd of the formula."""

import pytest
import torch

from models.neural.config import NetworkConfig
from models.neural.network import Network
from training.neural.optimization import OutputPenalties
from training.neural.settings import TrainSettings


def network_of(**changes):
    torch.manual_seed(1)
    return Network(NetworkConfig(embedding_size=6, hidden_size=6, **changes), 11).train()


def gradients(network, extra=None):
    """Of a loss of the features, and of what is given, for one stretch."""
    torch.manual_seed(2)
    tokens = torch.randint(0, 11, (5, 3))
    outputs, _ = network(tokens, network.initial_hidden(3))
    features = network.features(outputs)
    loss = features.square().sum()
    if extra is not None:
        loss = loss + extra(outputs, features)
    network.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


def plainly(alpha, beta):
    return lambda outputs, dropped: (
        alpha * dropped.square().mean() + beta * (outputs[1:] - outputs[:-1]).square().mean()
    )


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (0.0, 1.5), (2.0, 1.5)])
def test_gradients_are_those_of_the_formula(dropout, alpha, beta):
    expected = gradients(network_of(dropout=dropout), plainly(alpha, beta))
    penalised = network_of(dropout=dropout)
    penalties = OutputPenalties(penalised, TrainSettings(activation_penalty=alpha, slowness_penalty=beta))
    for ours, theirs in zip(gradients(penalised), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    penalties.scale = 3.0
    assert not torch.allclose(gradients(penalised)[0], expected[0])


def test_evaluation_is_not_penalised():
    network = network_of()
    OutputPenalties(network, TrainSettings(activation_penalty=5.0, slowness_penalty=5.0))
    expected = gradients(network_of().eval())
    for ours, theirs in zip(gradients(network.eval()), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
