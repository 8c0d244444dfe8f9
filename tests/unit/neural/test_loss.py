"""The full softmax's loss and gradients, by kernel and in slices, against autograd on the whole."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.neural.config import NetworkConfig
from models.neural.network import Network
from models.vocabulary import BOS
from training.neural.backward import backward
from training.neural.losses import full_softmax
from training.neural.losses.full_softmax import FullSoftmax
from training.neural.losses.kernel import softmax_gradients


@pytest.fixture
def network():
    torch.manual_seed(1)
    return Network(NetworkConfig(embedding_size=6, hidden_size=8, dropout=0), 20)


TARGETS = torch.tensor([[3, 4], [BOS, 5], [6, BOS], [7, 19]])
INPUTS = torch.tensor([[3, 4], [5, 6], [7, 8], [9, 10]])


def gradients(network, compute):
    network.zero_grad()
    value = compute(network(INPUTS, network.zero_hidden(2))[0])
    return value, {name: p.grad.clone() for name, p in network.named_parameters()}


def whole(network, outputs, pull=0.0):
    logits = network.output.logits(network.features(outputs).flatten(0, 1))
    predicted = TARGETS.flatten() != BOS
    value = functional.cross_entropy(logits, TARGETS.flatten(), ignore_index=BOS)
    value = value + 0.5 * pull * logits.logsumexp(-1)[predicted].square().mean()
    value.backward()
    return value.item()


@pytest.mark.parametrize("pull", [0.0, 0.7])
def test_slices_give_the_loss_and_the_gradient_of_the_whole(network, monkeypatch, pull):
    monkeypatch.setattr(full_softmax, "LOGITS", 40)  # two positions at a time
    loss = FullSoftmax(self_normalise=pull)
    sliced, got = gradients(network, lambda o: backward(network, o, TARGETS, loss, precision=torch.float32))
    expected, want = gradients(network, lambda o: whole(network, o, pull))
    assert sliced == pytest.approx(expected, abs=1e-6)
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, atol=1e-6, rtol=1e-5)


def test_the_kernel_and_autograd_agree(network):
    features, ids = torch.randn(9, 6), torch.tensor([3, 4, 5, 6, 7, 8, 9, 2, 0])
    loss = FullSoftmax(self_normalise=0.3)
    answers = []
    for compute in (loss._by_kernel, loss._by_autograd):
        network.zero_grad()
        learned = compute(network.output, features, ids, torch.float32)
        answers.append((learned, network.output.weight.grad.clone(), network.output.bias.grad.clone()))
    assert answers[0][0].loss == pytest.approx(answers[1][0].loss, abs=1e-6)
    torch.testing.assert_close(answers[0][0].gradient, answers[1][0].gradient, atol=1e-6, rtol=1e-5)
    for got, want in zip(answers[0][1:], answers[1][1:], strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 1000])
def test_the_kernel_is_exact_for_any_width(size):
    """Against float64, also with logits far apart and some that are minus infinity."""
    generator = np.random.default_rng(size)
    logits = generator.normal(scale=15, size=(3, size)).astype(np.float32)
    logits[:, 1 : size // 2 : 3] = -np.inf
    targets = np.array([0, size - 1, 0])
    exact = np.exp(logits.astype(np.float64))
    exact /= exact.sum(axis=1, keepdims=True)
    wanted_losses = -np.log(exact[np.arange(3), targets])
    exact[np.arange(3), targets] -= 1
    losses, log_sums = np.empty((2, 3), np.float32)
    softmax_gradients(logits, targets, np.float32(0.5), np.float32(0), losses, log_sums)
    np.testing.assert_allclose(losses, wanted_losses, atol=1e-5)
    np.testing.assert_allclose(logits, 0.5 * exact, atol=1e-6)


def test_targets_that_are_all_bos_teach_nothing(network):
    outputs, _ = network(INPUTS, network.zero_hidden(2))
    nothing = torch.full_like(TARGETS, BOS)
    assert backward(network, outputs, nothing, FullSoftmax(), precision=torch.float32) == 0
    assert network.output.bias.grad is None


def test_bfloat16_is_near_float32(network):
    def of(precision):
        return gradients(network, lambda o: backward(network, o, TARGETS, FullSoftmax(), precision=precision))

    (single, of_single), (half, of_half) = of(torch.float32), of(torch.bfloat16)
    assert half == pytest.approx(single, abs=0.02)
    for name, gradient in of_single.items():
        torch.testing.assert_close(of_half[name], gradient, atol=0.01, rtol=0.05)
