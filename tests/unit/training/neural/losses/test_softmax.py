"""The full softmax's loss and gradients, sliced and by the kernel, against autograd on the full batch."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.language_model import BOS
from models.neural.config import NetworkConfig
from models.neural.network import Network
from training.neural.losses import softmax
from training.neural.losses.softmax import FullSoftmax, logistic_gradients, softmax_gradients
from training.neural.trainer import backward


@pytest.fixture
def network():
    torch.manual_seed(1)
    return Network(NetworkConfig(embedding_size=6, hidden_size=8, dropout=0), 20)


TARGETS = torch.tensor([[3, 4], [BOS, 5], [6, BOS], [7, 19]])
INPUTS = torch.tensor([[3, 4], [5, 6], [7, 8], [9, 10]])


def gradients(network, compute):
    network.zero_grad()
    value = compute(network(INPUTS, network.initial_hidden(2))[0])
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
    monkeypatch.setattr(softmax, "MAX_LOGITS", 40)
    monkeypatch.setattr(softmax, "MIN_ROWS", 1)  # two positions at a time
    loss = FullSoftmax(network.output, self_normalise=pull)
    sliced, got = gradients(network, lambda o: backward(network, o, TARGETS, loss, precision=torch.float32))
    expected, want = gradients(network, lambda o: whole(network, o, pull))
    assert sliced == pytest.approx(expected, abs=1e-6)
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, atol=1e-6, rtol=1e-5)


def test_torch_does_the_same_as_the_kernel():
    """Runs the code for CUDA devices on the CPU."""
    logits, bias, targets = torch.randn(9, 50) * 5, torch.randn(50), torch.randint(50, (9,))
    bias[BOS], targets[targets == BOS] = -torch.inf, 3
    ours, torchs = logits.clone(), logits.clone()
    got = softmax.softmax_rows(ours, targets, scale=0.5, pull=0.3, bias=bias)
    want = softmax._softmax_rows_by_torch(torchs, bias, targets, 0.5, 0.3)
    torch.testing.assert_close(ours, torchs, atol=1e-6, rtol=1e-5)
    for ours_of_rows, torchs_of_rows in zip(got, want, strict=True):
        torch.testing.assert_close(ours_of_rows, torchs_of_rows)
    noise, noise_by_torch = logits.clone(), logits.clone()
    torch.testing.assert_close(
        softmax.logistic_rows(noise, scale=0.5), softmax._logistic_rows_by_torch(noise_by_torch, 0.5)
    )
    torch.testing.assert_close(noise, noise_by_torch)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 1000])
def test_the_kernel_is_exact_for_any_width(size):
    """Compared with float64, for widely spread logits, some of them −∞."""
    generator = np.random.default_rng(size)
    logits = generator.normal(scale=15, size=(3, size)).astype(np.float32)
    logits[:, 1 : size // 2 : 3] = -np.inf
    bias, targets = generator.normal(size=size).astype(np.float32), np.array([0, size - 1, 0])
    exact = np.exp(logits.astype(np.float64) + bias)
    exact /= exact.sum(axis=1, keepdims=True)
    wanted_losses = -np.log(exact[np.arange(3), targets])
    exact[np.arange(3), targets] -= 1
    losses, log_sums = np.empty((2, 3), np.float32)
    softmax_gradients(logits, bias, targets, np.float32(0.5), np.float32(0), losses, log_sums)
    np.testing.assert_allclose(losses, wanted_losses, atol=1e-5)
    np.testing.assert_allclose(logits, 0.5 * exact, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1000])
def test_the_logistic_kernel_is_exact_for_any_width(size):
    """Compared with float64, for widely spread logits, some of them −∞."""
    logits = np.random.default_rng(size).normal(scale=20, size=(3, size)).astype(np.float32)
    logits[:, 1 : size // 2 : 3] = -np.inf
    exact = logits.astype(np.float64)
    losses = np.empty(3, np.float32)
    logistic_gradients(logits, np.float32(0.5), losses)
    np.testing.assert_allclose(losses, np.logaddexp(0, exact).sum(1), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(logits, 0.5 / (1 + np.exp(-exact)), atol=1e-7)


def test_the_number_of_threads_changes_nothing(monkeypatch):
    logits, targets = torch.randn(7, 100).bfloat16(), torch.randint(100, (7,))
    answers = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        rows = logits.clone()
        answers.append((rows, *softmax.softmax_rows(rows, targets, scale=1.0)))
    assert all(torch.equal(one, other) for one, other in zip(*answers, strict=True))


def test_targets_that_are_all_bos_teach_nothing(network):
    outputs, _ = network(INPUTS, network.initial_hidden(2))
    nothing = torch.full_like(TARGETS, BOS)
    assert backward(network, outputs, nothing, FullSoftmax(network.output), precision=torch.float32) == 0
    assert network.output.bias.grad is None


def test_bfloat16_is_near_float32(network):
    def of(precision):
        return gradients(
            network, lambda o: backward(network, o, TARGETS, FullSoftmax(network.output), precision=precision)
        )

    (single, of_single), (half, of_half) = of(torch.float32), of(torch.bfloat16)
    assert half == pytest.approx(single, abs=0.02)
    for name, gradient in of_single.items():
        torch.testing.assert_close(of_half[name], gradient, atol=0.01, rtol=0.05)
