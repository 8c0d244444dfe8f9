"""A linear layer and its softmax, forward and backward, in bounded memory.

Positions are taken in slices, each forward and backward at once, so that logits [N, V] never exist
as a whole.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from training.neural.losses.in_place import SoftmaxRows, softmax_rows

MAX_LOGITS = 1 << 22
"""Logits held at once on a CPU; beyond the caches, fresh pages for them cost more than the products."""

MAX_LOGITS_ON_CUDA = 1 << 25

MIN_ROWS = 256
"""Positions at least in a slice: each slice reads and writes matrices as large as the layer's."""


class LinearSoftmax(NamedTuple):
    """Losses of a linear layer's softmax and the gradients of their scaled sum.

    Attributes:
        losses: −log p(target) [N], float32.
        log_sums: log Σ exp of the logits [N], float32.
        grad_inputs: [N, E], in the precision of the products.
        grad_weight: [V, E], float32.
        grad_bias: [V], float32.
    """

    losses: Tensor
    log_sums: Tensor
    grad_inputs: Tensor
    grad_weight: Tensor
    grad_bias: Tensor


def linear_softmax(
    weight: Tensor,
    bias: Tensor,
    inputs: Tensor,
    targets: Tensor,
    *,
    scale: float,
    precision: torch.dtype,
    pull: float = 0.0,
) -> LinearSoftmax:
    """Losses and gradients of scale · Σ_n (loss_n + ½ pull · log_sum_n²); nothing is differentiated by torch.

    Args:
        weight: [V, E].
        bias: [V]; minus infinity for what is never predicted.
        inputs: [N, E]; N may be 0.
        targets: places in [0, V) that follow [N].
        scale: of the gradients.
        precision: of the matrix products.
        pull: weight of the squared log-normalisers.
    """
    weight, bias = weight.detach().to(precision), bias.detach().float()
    inputs = inputs.to(precision)
    count, size = (
        len(targets),
        max(MIN_ROWS, (MAX_LOGITS_ON_CUDA if inputs.is_cuda else MAX_LOGITS) // len(bias)),
    )
    answer = LinearSoftmax(
        inputs.new_empty(count, dtype=torch.float32),
        inputs.new_empty(count, dtype=torch.float32),
        torch.empty_like(inputs),
        torch.zeros_like(weight, dtype=torch.float32),
        torch.zeros_like(bias),
    )
    buffer = inputs.new_empty(min(size, count), len(bias))
    for start in range(0, count, size):
        cut = slice(start, min(start + size, count))
        logits = buffer[: cut.stop - start]
        torch.mm(inputs[cut], weight.T, out=logits)  # a bias added here would be spread over all rows first
        rows: SoftmaxRows = softmax_rows(logits, targets[cut], scale=scale, pull=pull, bias=bias)
        answer.losses[cut], answer.log_sums[cut] = rows
        torch.mm(logits, weight, out=answer.grad_inputs[cut])
        if precision == torch.float32:
            answer.grad_weight.addmm_(logits.T, inputs[cut])
        else:
            answer.grad_weight.add_(logits.T @ inputs[cut])
        answer.grad_bias.add_(logits.sum(0, dtype=torch.float32))
    return answer
