"""Output layers: interface, softmax over the full vocabulary, and adaptive softmax.

`<s>` is never predicted. A compiled log-sum-exp of logits without a gradient is independent of the other
rows of a batch on a CPU.

The adaptive softmax clusters tokens by frequency; embeddings of rarer tokens have narrower vectors.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from numba import types
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from models.arrays import FloatArray
from models.errors import InputError
from models.kernels.compilation import kernel
from models.kernels.log_sum_exp import ROW_LANES, add_exp_in_lanes, max_in_lanes
from models.kernels.math import exp, fold_lanes, greater
from models.kernels.threads import run_slices
from models.language_model import BOS, EOS
from models.neural.config import cluster_shapes, cutoffs_problem
from models.neural.constants import LOGITS_PER_THREAD

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


class ClusteredEmbedding(nn.Module):
    """Token vectors in clusters by frequency, of width E, then E / 4, E / 16, ….

    Input vectors are widened by their cluster's projection (Baevski and Auli 2019). `<s>`, which begins
    every sentence and is never predicted, always has rank 0.

    Attributes:
        rank: rank of each token by descending frequency [V]; integers stored with the weights.
        bounds: cluster i has the ranks from bounds[i] to below bounds[i + 1].
        tables: vectors of each cluster in order of rank, [Vᵢ, Eᵢ].
        projections: from full width to that of each cluster but the first, [Eᵢ, E].

    Args:
        vocab_size: V.
        width: E.
        cutoffs: ranks at which a new cluster begins.

    Raises:
        InputError: the cutoffs do not ascend from 3 to below V.
    """

    def __init__(self, vocab_size: int, width: int, *, cutoffs: Sequence[int]) -> None:
        super().__init__()
        problem = cutoffs_problem(cutoffs, vocab_size=vocab_size)
        if problem is not None:
            raise InputError(f"neural.cutoffs: {problem}", param="neural.cutoffs")
        self.bounds = (0, *cutoffs, vocab_size)
        shapes = cluster_shapes(cutoffs, vocab_size=vocab_size, width=width)
        self.tables = nn.ParameterList(
            torch.empty(shape).uniform_(-INITIAL_RANGE, INITIAL_RANGE) for shape in shapes
        )
        # scaled so the initial logits and widened vectors of all clusters have equal size
        self.projections = nn.ParameterList(torch.randn(w, width) * w**-0.5 for _, w in shapes[1:])
        first = torch.tensor([BOS])
        order = torch.cat([first, torch.arange(BOS), torch.arange(BOS + 1, vocab_size)])
        self.rank: Tensor
        self.register_buffer("rank", torch.argsort(order))

    def __len__(self) -> int:
        """Number of clusters."""
        return len(self.bounds) - 1

    def table(self, cluster: int) -> nn.Parameter:
        """Return the vectors of a cluster."""
        return cast("nn.Parameter", self.tables[cluster])

    def projection(self, cluster: int) -> nn.Parameter:
        """Return the projection of a cluster other than the first."""
        return cast("nn.Parameter", self.projections[cluster - 1])

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the input vectors [..., E] of tokens [...]."""
        ranks = self.rank[tokens]
        vectors: Tensor | None = None
        # every token is looked up in every cluster and masked: shapes must not depend on tokens
        for i in range(len(self)):
            begin, end = self.bounds[i], self.bounds[i + 1]
            inside = (ranks >= begin) & (ranks < end)
            found = functional.embedding((ranks - begin).clamp(0, end - begin - 1), self.table(i))
            found = found * inside.unsqueeze(-1)
            if i:
                found = functional.linear(found, self.projection(i).T)
            vectors = found if vectors is None else vectors + found
        assert vectors is not None  # noqa: S101 - there are at least two clusters
        return vectors


class AdaptiveSoftmax(OutputLayer):
    """Softmax over frequent tokens and clusters, then within a cluster (Grave et al. 2017).

    A frequent token's probability is its softmax probability in the head. That of a rare
    token is the head's probability of its cluster times its softmax probability within it.

    Attributes:
        vectors: token vectors, shared with the embedding if the network is tied.
        clusters: vectors of the clusters but the first [C − 1, E].
        biases: biases of the head, tokens first, and of each other cluster's tokens.

    Args:
        width: E, width of the features.
        vectors: token vectors, of full width E.
    """

    def __init__(self, width: int, vectors: ClusteredEmbedding) -> None:
        super().__init__()
        self.vectors = vectors
        tails = len(vectors) - 1
        self.clusters = nn.Parameter(torch.empty(tails, width).uniform_(-INITIAL_RANGE, INITIAL_RANGE))
        sizes = [len(table) for table in vectors.tables]
        self.biases = nn.ParameterList(torch.zeros(size) for size in [sizes[0] + tails, *sizes[1:]])
        # on the CPU even if the model is on `meta`
        never = torch.zeros(sizes[0] + tails, device="cpu")
        never[0] = -math.inf  # the rank of <s>
        self.register_buffer("never_predicted", never, persistent=False)  # added to the head's bias
        self.never_predicted: Tensor
        # first ranks of other clusters
        starts = torch.tensor(vectors.bounds[1:-1], device="cpu")
        self.register_buffer("starts", starts, persistent=False)
        self.starts: Tensor

    def head(self) -> tuple[Tensor, Tensor]:
        """Return the head's weights [V₀ + C − 1, E] and biases: frequent tokens, then clusters."""
        weight = torch.cat([self.vectors.table(0), self.clusters])
        return weight, self.biases[0] + self.never_predicted

    def head_index(self, ranks: Tensor) -> Tensor:
        """Return the index in the head by tokens' ranks [N]: the token's own, or its cluster's."""
        cluster = torch.bucketize(ranks, self.starts, right=True)
        return torch.where(cluster == 0, ranks, self.vectors.bounds[1] + cluster - 1)

    @override
    def log_probs(self, features: Tensor) -> Tensor:
        head = torch.log_softmax(functional.linear(features, *self.head()), dim=-1)
        size = self.vectors.bounds[1]
        tails = (self._inside(i, features) + head[:, size + i - 1, None] for i in range(1, len(self.vectors)))
        return torch.cat([head[:, :size], *tails], dim=1).index_select(1, self.vectors.rank)

    @override
    def target_log_probs(self, features: Tensor, ids: Tensor) -> Tensor:
        ranks = self.vectors.rank[ids]
        head = functional.linear(features, *self.head())
        answer = -functional.cross_entropy(head, self.head_index(ranks), reduction="none")
        for i, rows, indices in self._in_clusters(ranks):
            inside = self._inside(i, features[rows]).gather(1, indices[:, None])
            answer = answer.index_add(0, rows, inside[:, 0].to(answer.dtype))
        return answer

    @override
    def choice_log_probs(self, features: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        ranks = self.vectors.rank[ids]
        head = torch.log_softmax(functional.linear(features, *self.head()), dim=-1)
        answer = head[rows, self.head_index(ranks)]
        for i, choices, indices in self._in_clusters(ranks):
            needed, places = rows[choices].unique(return_inverse=True)  # type: ignore[no-untyped-call]
            answer[choices] += self._inside(i, features[needed])[places, indices]
        return answer

    def _in_clusters(self, ranks: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield later clusters that have ranks [N], these ranks' positions, and indices inside."""
        for i, (begin, end) in enumerate(itertools.pairwise(self.vectors.bounds[1:]), start=1):
            members = ((ranks >= begin) & (ranks < end)).nonzero().squeeze(1)
            if len(members):
                yield i, members, ranks[members] - begin

    def _inside(self, cluster: int, features: Tensor) -> Tensor:
        """Return log-probabilities [N, Vᵢ] of a cluster's tokens, given the cluster."""
        narrow = functional.linear(features, self.vectors.projection(cluster))
        logits = functional.linear(narrow, self.vectors.table(cluster), self.biases[cluster])
        return torch.log_softmax(logits, dim=-1)

    @override
    @torch.no_grad()
    def initialise_from_counts(self, counts: Tensor) -> None:
        keys = counts.clone()
        keys[BOS] = torch.inf  # rank 0
        order = torch.argsort(keys, descending=True, stable=True)
        self.vectors.rank.copy_(torch.argsort(order))
        ordered = counts[order]
        bounds = self.vectors.bounds
        tails = [ordered[begin:end] for begin, end in itertools.pairwise(bounds[1:])]
        head = torch.cat([ordered[: bounds[1]], torch.stack([tail.sum() for tail in tails])])
        for bias, part in zip(self.biases, [head, *tails], strict=True):
            bias.copy_(torch.log(part / part.sum()))
        ordered[0] = counts[EOS]  # of <s>, which begins each sentence, and is only read
        for table, begin, end in zip(self.vectors.tables, bounds[:-1], bounds[1:], strict=True):
            scale_by_counts(table, ordered[begin:end])
