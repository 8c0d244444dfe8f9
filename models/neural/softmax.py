"""Output layers: interface, and softmax over the full vocabulary; `<s>` is never predicted.

Also a compiled log-sum-exp of logits without a gradient, which on a CPU is independent of the other
rows of a batch.
"""

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from numba import types
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from models.arrays import FloatArray
from models.kernels.compilation import kernel
from models.kernels.log_sum_exp import ROW_LANES, add_exp_in_lanes, max_in_lanes
from models.kernels.math import exp, fold_lanes, greater
from models.kernels.threads import run_slices
from models.neural.constants import LOGITS_PER_THREAD
from models.vocabulary import BOS, EOS

_LOWEST = np.float32(-3e38)

INITIAL_RANGE = 0.1


def log_sum_exp(logits: Tensor) -> Tensor:
    """Return the log-sum-exp of each row [N] of logits [N, V], without a gradient.

    On a CPU it is five times as fast as `torch.logsumexp` and independent of the batch's other rows.
    """
    if logits.is_cuda or logits.dtype != torch.float32:
        return torch.logsumexp(logits, dim=-1)
    sums = torch.empty(len(logits))
    values, out = logits.detach().numpy(), sums.numpy()
    shares = max(1, min(torch.get_num_threads(), logits.numel() // LOGITS_PER_THREAD))
    ends = np.linspace(0, len(out), shares + 1).astype(int).tolist()
    run_slices(lambda rows: _log_sum_exp_rows(values[rows], out[rows]), ends)
    return sums


@kernel(types.void(types.float32[:, ::1], types.float32[::1]))
def _log_sum_exp_rows(logits: FloatArray, sums: FloatArray) -> None:
    """Write the log-sum-exp of each row, summed in 64 lanes and then by halves."""
    width = logits.shape[1]
    end = width // ROW_LANES * ROW_LANES
    lanes = np.empty(ROW_LANES, np.float32)  # independent maxima and sums: vectorised
    for row in range(len(logits)):
        lanes[:] = _LOWEST
        max_in_lanes(logits[row], end, lanes)
        for column in range(end, width):
            lanes[column - end] = greater(lanes[column - end], logits[row, column])
        highest = lanes.max()
        lanes[:] = 0
        add_exp_in_lanes(logits[row], end, highest, lanes)
        for column in range(end, width):
            lanes[column - end] += exp(logits[row, column] - highest)
        sums[row] = np.log(fold_lanes(lanes)) + highest


class OutputLayer(nn.Module, ABC):
    """Layer from vectors to distributions over the vocabulary of size V."""

    @abstractmethod
    def log_probs(self, features: Tensor) -> Tensor:
        """Return log-probabilities [N, V] after vectors [N, E]; minus infinity for `<s>`."""

    @abstractmethod
    def target_log_probs(self, features: Tensor, ids: Tensor) -> Tensor:
        """Return log-probabilities [N] of ids [N] after vectors [N, E]."""

    @abstractmethod
    def choice_log_probs(self, features: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        """Return log-probabilities [C] of ids [C] after vectors [N, E], by ascending index `rows` [C].

        The cost is one distribution per vector, independent of the number of ids.
        """

    def target_logits(self, features: Tensor, ids: Tensor) -> Tensor:
        """Return unnormalised log-probabilities [N] of ids [N], if possible with no sum over V."""
        return self.target_log_probs(features, ids)

    @abstractmethod
    def initialise_from_counts(self, counts: Tensor) -> None:
        """Set biases to log frequencies, and scale vectors, by tokens' counts [V]."""


@torch.no_grad()
def scale_by_counts(vectors: Tensor, counts: Tensor) -> None:
    """Scale vectors [N, E] in proportion to log(count + 1); their mean length stays.

    Rare tokens begin with small logits and input vectors, which their few examples can move. Source: Herold,
    Gao and Ney 2018.
    """
    lengths = torch.log1p(counts)
    vectors.mul_((lengths / lengths.mean()).to(vectors.device)[:, None])


class Softmax(OutputLayer):
    """p(w) ∝ exp(v_w · x + b_w).

    Args:
        width: E, width of the vectors.
        vocab_size: V.
        shared: the embedding's matrix [V, E], to share it; None for a separate matrix.
    """

    def __init__(self, width: int, vocab_size: int, *, shared: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, width)) if shared is None else shared
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        if shared is None:
            nn.init.uniform_(self.weight, -INITIAL_RANGE, INITIAL_RANGE)
        never = torch.zeros(vocab_size, device="cpu")  # even if the model is on `meta`
        never[BOS] = -math.inf
        self.register_buffer("never_predicted", never, persistent=False)  # added to the bias
        self.never_predicted: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Return unnormalised log-probabilities [N, V] after vectors [N, E]; −∞ for `<s>`."""
        return functional.linear(features, self.weight, self.bias + self.never_predicted)

    @override
    def log_probs(self, features: Tensor) -> Tensor:
        return torch.log_softmax(self.logits(features), dim=-1)

    @override
    def target_log_probs(self, features: Tensor, ids: Tensor) -> Tensor:
        logits = self.logits(features)
        if torch.is_grad_enabled() or logits.is_cuda:
            return -functional.cross_entropy(logits, ids, reduction="none")
        return logits.gather(1, ids[:, None])[:, 0] - log_sum_exp(logits)

    @override
    def choice_log_probs(self, features: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        logits = self.logits(features)
        return logits[rows, ids] - log_sum_exp(logits)[rows]

    @override
    def target_logits(self, features: Tensor, ids: Tensor) -> Tensor:
        return (features * self.weight[ids]).sum(-1) + self.bias[ids] + self.never_predicted[ids]

    @override
    @torch.no_grad()
    def initialise_from_counts(self, counts: Tensor) -> None:
        self.bias.copy_(torch.log(counts / counts.sum()))
        read = counts.clone()
        read[BOS] = counts[EOS]  # it begins each sentence, and is only read
        scale_by_counts(self.weight, read)
