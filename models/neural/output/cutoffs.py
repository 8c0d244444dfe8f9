"""Where the clusters of an adaptive softmax may begin; needs no torch."""

import itertools
from collections.abc import Sequence

MIN_HEAD_TOKENS = 3
"""Tokens at least in the first cluster: as many as there are control ids."""


def cutoffs_problem(cutoffs: Sequence[int], *, vocab_size: int | None = None) -> str | None:
    """What is wrong with the ranks at which clusters begin, in words; None if nothing is.

    Args:
        cutoffs: the ranks.
        vocab_size: V, if it is known yet.
    """
    bounds = (MIN_HEAD_TOKENS - 1, *cutoffs)
    if len(bounds) == 1 or any(low >= high for low, high in itertools.pairwise(bounds)):
        return f"must be a list that rises from {MIN_HEAD_TOKENS} or more, such as [2000, 10000], given {list(cutoffs)}"
    if vocab_size is not None and cutoffs[-1] >= vocab_size:
        return f"must stay below the vocabulary's {vocab_size} tokens, given {list(cutoffs)}"
    return None
