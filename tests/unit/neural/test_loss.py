"""The loss in slices against the loss as a whole."""

import pytest
import torch
from torch.nn import functional

from models.neural.config import RecurrentConfig
from models.neural.network import RecurrentNetwork
from models.vocabulary import BOS
from training.neural import loss
from training.neural.loss import backward


@pytest.fixture
def network():
    torch.manual_seed(1)
    return RecurrentNetwork(RecurrentConfig(embedding_size=6, hidden_size=8, dropout=0), 20)


TARGETS = torch.tensor([[3, 4], [BOS, 5], [6, BOS], [7, 19]])
INPUTS = torch.tensor([[3, 4], [5, 6], [7, 8], [9, 10]])


def gradients(network, compute):
    network.zero_grad()
    value = compute(network(INPUTS, network.zero_hidden(2))[0])
    return value, {name: p.grad.clone() for name, p in network.named_parameters()}


def whole(network, outputs):
    logits = network.logits(outputs.flatten(0, 1))
    value = functional.cross_entropy(logits, TARGETS.flatten(), ignore_index=BOS)
    value.backward()
    return value.item()


def test_slices_give_the_loss_and_the_gradient_of_the_whole(network, monkeypatch):
    monkeypatch.setattr(loss, "LOGITS", 40)  # two positions at a time
    sliced, got = gradients(network, lambda o: backward(network, o, TARGETS, precision=torch.float32))
    expected, want = gradients(network, lambda o: whole(network, o))
    assert sliced == pytest.approx(expected, abs=1e-6)
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, atol=1e-6, rtol=1e-5)


def test_targets_that_are_all_bos_teach_nothing(network):
    outputs, _ = network(INPUTS, network.zero_hidden(2))
    assert backward(network, outputs, torch.full_like(TARGETS, BOS), precision=torch.float32) == 0
    assert network.output.bias.grad is None


def test_bfloat16_is_near_float32(network):
    single, _ = gradients(network, lambda o: backward(network, o, TARGETS, precision=torch.float32))
    half, _ = gradients(network, lambda o: backward(network, o, TARGETS, precision=torch.bfloat16))
    assert half == pytest.approx(single, abs=0.02)
