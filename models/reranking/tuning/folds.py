"""Which lists are tuned on, and which are held out meanwhile."""

from collections.abc import Sequence

import numpy as np

from models.reranking.lists import CandidateList
from models.reranking.tuning.problem import Ints


def assign_folds(lists: Sequence[CandidateList], *, folds: int, seed: int) -> Ints:
    """The fold of each list [N], from 0; about as many lists in each.

    Lists of the same references are in one fold: else what is held out would have been seen.

    Args:
        lists: each with references.
        folds: how many; at least 2.
        seed: another one gives other folds.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, one in enumerate(lists):
        groups.setdefault(one.references, []).append(number)
    members = list(groups.values())
    numbers = np.zeros(len(lists), dtype=np.int64)
    sizes = [0] * folds
    for group in np.random.default_rng(seed).permutation(len(members)).tolist():
        fold = sizes.index(min(sizes))
        numbers[members[group]] = fold
        sizes[fold] += len(members[group])
    return numbers
