"""Vectors of tokens that are the narrower the rarer the tokens are."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.errors import InvalidInputError
from models.neural.output.cutoffs import cutoffs_problem
from models.vocabulary import BOS

WIDTH_DIVISOR = 4
"""Each cluster's vectors are so many times narrower than those of the one before."""


class ClusteredEmbedding(nn.Module):
    """Tokens in clusters by frequency; vectors of full width in the first, E / 4, E / 16, … in the others.

    As input vectors they are widened by their cluster's projection (Baevski and Auli 2019). `<s>`,
    which stands before every sentence and is never predicted, always has rank 0.

    Attributes:
        rank: of each token, by falling frequency [V]; an integer buffer that is stored with the weights.
        bounds: of the clusters: cluster i holds the ranks from bounds[i] to below bounds[i + 1].
        tables: vectors of each cluster in the order of rank, [Vᵢ, Eᵢ].
        projections: from full width to that of each cluster but the first, [Eᵢ, E].

    Args:
        vocab_size: V.
        width: E.
        cutoffs: ranks at which a new cluster begins.
        initial_range: of the values of vectors of full width.

    Raises:
        InvalidInputError: the cutoffs do not rise from 3 to below the vocabulary's size.
    """

    def __init__(self, vocab_size: int, width: int, *, cutoffs: Sequence[int], initial_range: float) -> None:
        super().__init__()
        problem = cutoffs_problem(cutoffs, vocab_size=vocab_size)
        if problem is not None:
            raise InvalidInputError(f"neural.cutoffs: {problem}", parameter="neural.cutoffs")
        self.bounds = (0, *cutoffs, vocab_size)
        sizes = [end - begin for begin, end in zip(self.bounds, self.bounds[1:], strict=False)]
        widths = [max(1, width // WIDTH_DIVISOR**i) for i in range(len(sizes))]
        self.tables = nn.ParameterList(
            torch.empty(s, w).uniform_(-initial_range, initial_range)
            for s, w in zip(sizes, widths, strict=True)
        )
        # scaled so that all clusters' logits and widened vectors start alike
        self.projections = nn.ParameterList(torch.randn(w, width) * w**-0.5 for w in widths[1:])
        first = torch.tensor([BOS])
        order = torch.cat([first, torch.arange(BOS), torch.arange(BOS + 1, vocab_size)])
        self.rank: Tensor
        self.register_buffer("rank", torch.empty_like(order).scatter_(0, order, torch.arange(vocab_size)))

    def __len__(self) -> int:
        """The number of clusters."""
        return len(self.bounds) - 1

    def table(self, cluster: int) -> nn.Parameter:
        """The vectors of a cluster."""
        return cast("nn.Parameter", self.tables[cluster])

    def projection(self, cluster: int) -> nn.Parameter:
        """The projection of a cluster other than the first."""
        return cast("nn.Parameter", self.projections[cluster - 1])

    def forward(self, tokens: Tensor) -> Tensor:
        """The input vectors [..., E] of tokens [...]."""
        ranks = self.rank[tokens]
        vectors: Tensor | None = None
        # every token is looked up in every cluster and masked: shapes do not depend on the tokens
        for i in range(len(self)):
            begin, end = self.bounds[i], self.bounds[i + 1]
            inside = (ranks >= begin) & (ranks < end)
            found = functional.embedding((ranks - begin).clamp(0, end - begin - 1), self.table(i))
            found = found * inside.unsqueeze(-1)
            if i:
                found = functional.linear(found, self.projection(i).T)
            vectors = found if vectors is None else vectors + found
        assert vectors is not None  # noqa: S101 - there are two clusters at least
        return vectors

    @torch.no_grad()
    def rank_tokens(self, counts: Tensor) -> Tensor:
        """Rank the tokens by how often they occur [V]; returns their ids in the order of rank [V]."""
        counts = counts.clone()
        counts[BOS] = torch.inf
        order = torch.argsort(counts, descending=True, stable=True)
        self.rank.copy_(
            torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        )
        return order

    @property
    def problem(self) -> str | None:
        """What is wrong with the ranks, None if nothing is; they may come from a damaged file."""
        places = torch.sort(self.rank).values
        if not torch.equal(places, torch.arange(len(places), device=places.device)):
            return f"rank is not a permutation of 0 to {len(places) - 1}"
        return None if self.rank[BOS] == 0 else f"rank of <s> is {int(self.rank[BOS])}, it must be 0"
