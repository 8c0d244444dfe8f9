"""Rows of logits to losses and gradients where they stand: by kernels in threads on a CPU, else by torch."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from training.neural.losses.kernel import softmax_gradients
from training.neural.losses.logistic_kernel import logistic_gradients

AnyArray: TypeAlias = npt.NDArray[Any]


class SoftmaxRows(NamedTuple):
    """What became of rows of logits beside their gradients.

    Attributes:
        losses: −log p(target) [N], float32.
        log_sums: log Σ exp [N], float32.
    """

    losses: Tensor
    log_sums: Tensor


def softmax_rows(
    logits: Tensor, targets: Tensor, *, scale: float, pull: float = 0.0, bias: Tensor | None = None
) -> SoftmaxRows:
    """Turn logits into the gradient of scale · Σ_n (loss_n + ½ pull · log_sum_n²), in place.

    Args:
        logits: [N, V], float32 or bfloat16; written over.
        targets: places in the rows [N].
        scale: of the gradients.
        pull: weight of the squared log-normalisers.
        bias: yet to be added to each row [V], float32; None for nothing.
    """
    if bias is None:
        bias = logits.new_zeros(logits.shape[1], dtype=torch.float32)
    if logits.is_cuda:
        return _softmax_rows_by_torch(logits, bias, targets, scale, pull)
    losses, log_sums = torch.empty(2, len(logits))
    rows, added, places = _numpy_view(logits), bias.numpy(), targets.numpy()

    def work(part: slice) -> None:
        softmax_gradients(
            rows[part],
            added,
            places[part],
            np.float32(scale),
            np.float32(pull),
            losses[part].numpy(),
            log_sums[part].numpy(),
        )

    _in_threads(work, len(rows))
    return SoftmaxRows(losses, log_sums)


def logistic_rows(logits: Tensor, *, scale: float) -> Tensor:
    """Turn logits of what is noise into the gradient of scale · Σ −log(1 − σ(logit)), in place.

    Args:
        logits: [N, S], float32 or bfloat16; written over.
        scale: of the gradients.

    Returns:
        The sum of each row's losses [N], float32.
    """
    if logits.is_cuda:
        return _logistic_rows_by_torch(logits, scale)
    losses = torch.empty(len(logits))
    rows = _numpy_view(logits)
    _in_threads(
        lambda part: logistic_gradients(rows[part], np.float32(scale), losses[part].numpy()), len(rows)
    )
    return losses


def _softmax_rows_by_torch(
    logits: Tensor, bias: Tensor, targets: Tensor, scale: float, pull: float
) -> SoftmaxRows:
    exact = logits.float() + bias
    log_sums = exact.logsumexp(-1)
    rows = torch.arange(len(targets), device=targets.device)
    losses = log_sums - exact[rows, targets]
    exact = torch.exp(exact - log_sums[:, None]).mul_((scale * (1 + pull * log_sums))[:, None])
    exact[rows, targets] -= scale
    logits.copy_(exact)
    return SoftmaxRows(losses, log_sums)


def _logistic_rows_by_torch(logits: Tensor, scale: float) -> Tensor:
    exact = logits.float()
    losses = functional.softplus(exact).sum(-1)
    logits.copy_(torch.sigmoid(exact).mul_(scale))
    return losses


def _numpy_view(logits: Tensor) -> AnyArray:
    """The same memory as an array; numpy has no bfloat16, so its 16 bits."""
    array: AnyArray = (logits.view(torch.uint16) if logits.dtype == torch.bfloat16 else logits).numpy()
    return array


def _in_threads(work: Callable[[slice], None], rows: int) -> None:
    """Do a share of the rows in each thread; what comes out does not depend on their number."""
    threads = max(1, torch.get_num_threads())
    cuts = np.linspace(0, rows, min(threads, rows) + 1).astype(int)
    list(_pool(threads).map(lambda begin, end: work(slice(begin, end)), cuts[:-1], cuts[1:]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="loss")
