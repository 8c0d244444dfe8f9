"""Candidates that say the same, as one: posteriors over distinct texts."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError


class DistinctCandidates(NamedTuple):
    """C candidates as U distinct ones, in the order in which they first come.

    Attributes:
        first: where each is first among the candidates [U].
        of_candidate: which one each candidate is [C].
        posteriors: the mass of each, 1 together [U].
    """

    first: npt.NDArray[np.int64]
    of_candidate: npt.NDArray[np.int64]
    posteriors: npt.NDArray[np.float64]


def merge_equal_candidates(candidates: Sequence[Hashable], posteriors: npt.ArrayLike) -> DistinctCandidates:
    """Merge equal candidates and normalise their posteriors.

    Args:
        candidates: what is compared, such as texts; at least one.
        posteriors: of each, or weights in proportion to them [C].

    Raises:
        InvalidInputError: there is no candidate, or the posteriors are not one for each, are negative or not
            finite, or sum to 0.
    """
    mass = np.asarray(posteriors, np.float64)
    if not candidates:
        raise InvalidInputError("candidates has 0 entries; it must have at least 1", parameter="candidates")
    if mass.shape != (len(candidates),):
        raise InvalidInputError(
            f"posteriors has the shape {list(mass.shape)}; it must be [{len(candidates)}], one for each candidate",
            parameter="posteriors",
        )
    total = float(mass.sum())
    if not (mass.min() >= 0 and 0 < total < np.inf):
        raise InvalidInputError(
            f"posteriors are from {mass.min()} and sum to {total}; they must be 0 or more, with a finite sum above 0",
            parameter="posteriors",
        )
    number_of: dict[Hashable, int] = {}
    of_candidate = np.array([number_of.setdefault(candidate, len(number_of)) for candidate in candidates])
    first = np.unique(of_candidate, return_index=True)[1]
    of_distinct = np.zeros(len(first))
    np.add.at(of_distinct, of_candidate, mass / total)
    return DistinctCandidates(first, of_candidate, of_distinct)
