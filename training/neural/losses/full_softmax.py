"""Cross-entropy over the whole vocabulary and its gradient, in bounded memory.

The output layer is taken in slices of positions, each forward and backward at once, so that logits
[N, V] never exist as a whole.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from models.errors import InvalidInputError
from models.neural.output.layer import OutputLayer
from models.neural.output.softmax import Softmax
from training.neural.losses.kernel import softmax_gradients
from training.neural.losses.loss import Learned
from training.neural.precision import autocast

Array: TypeAlias = npt.NDArray[Any]
LOGITS = 1 << 22
"""Logits held at once; beyond the caches, fresh pages for them cost more than the products."""


class FullSoftmax:
    """Mean cross-entropy, plus ½ `self_normalise` times the mean squared log-normaliser.

    The second term pulls Σ exp of the logits towards 1, so that logits can stand for log-probabilities
    where a sum over the vocabulary is too slow (Devlin et al. 2014; Chen et al. 2015, "variance regularisation").

    Args:
        self_normalise: weight of the second term; 0 for plain cross-entropy.
    """

    def __init__(self, *, self_normalise: float = 0.0) -> None:
        self.self_normalise = self_normalise
        self._threads = max(1, torch.get_num_threads())
        self._pool = ThreadPoolExecutor(self._threads)

    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> Learned:
        """Add the gradients of the mean loss to the output layer's; see `Loss`."""
        if not isinstance(output, Softmax):
            raise InvalidInputError(
                f"train.loss softmax needs neural.output=softmax, not {type(output).__name__}",
                parameter="train.loss",
            )
        if features.is_cuda:
            return self._by_autograd(output, features, ids, precision)
        return self._by_kernel(output, features, ids, precision)

    def _by_kernel(self, output: Softmax, features: Tensor, ids: Tensor, precision: torch.dtype) -> Learned:
        weight = output.weight.detach().to(precision)
        bias = (output.bias + output.never_predicted).detach().to(precision)
        inputs = features.to(precision)
        count, size = len(ids), max(1, LOGITS // len(bias))
        targets = ids.numpy()
        gradient = torch.empty_like(inputs)
        of_weight, of_bias = torch.zeros_like(output.weight), torch.zeros_like(output.bias)
        buffer = torch.empty(min(size, count), len(bias), dtype=precision)
        losses, log_sums = np.empty((2, count), dtype=np.float32)
        for start in range(0, count, size):
            cut = slice(start, min(start + size, count))
            logits = buffer[: cut.stop - start]
            torch.addmm(bias, inputs[cut], weight.T, out=logits)
            self._in_threads(logits, targets[cut], 1 / count, losses[cut], log_sums[cut])
            torch.mm(logits, weight, out=gradient[cut])
            of_weight += logits.T @ inputs[cut]
            of_bias += logits.sum(0, dtype=torch.float32)
        _accumulate(output.weight, of_weight)
        _accumulate(output.bias, of_bias)
        loss = losses + 0.5 * self.self_normalise * log_sums**2 if self.self_normalise else losses
        return Learned(float(loss.mean(dtype=np.float64)), gradient.to(features.dtype))

    def _in_threads(
        self,
        logits: Tensor,
        targets: Array,
        scale: float,
        losses: Array,
        log_sums: Array,
    ) -> None:
        """Turn logits into gradients, a share of the rows in each thread."""
        rows = (logits.view(torch.uint16) if logits.dtype == torch.bfloat16 else logits).numpy()
        cuts = np.linspace(0, len(rows), min(self._threads, len(rows)) + 1).astype(int)

        def work(begin: int, end: int) -> None:
            part = slice(begin, end)
            pull = np.float32(self.self_normalise)
            softmax_gradients(
                rows[part], targets[part], np.float32(scale), pull, losses[part], log_sums[part]
            )

        list(self._pool.map(work, cuts[:-1], cuts[1:]))

    def _by_autograd(self, output: Softmax, features: Tensor, ids: Tensor, precision: torch.dtype) -> Learned:
        leaf = features.detach().requires_grad_()
        total = torch.zeros((), device=features.device)
        size = max(1, 8 * LOGITS // len(output.bias))
        for start in range(0, len(ids), size):
            cut = slice(start, start + size)
            with autocast(precision, features.device):
                logits = output.logits(leaf[cut]).float()
            loss = functional.cross_entropy(logits, ids[cut], reduction="sum")
            if self.self_normalise:
                loss = loss + 0.5 * self.self_normalise * logits.logsumexp(-1).square().sum()
            loss = loss / len(ids)
            loss.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
            total += loss.detach()
        gradient = leaf.grad
        assert gradient is not None  # noqa: S101 - there is a position, so there was a backward pass
        return Learned(float(total), gradient)


def _accumulate(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
