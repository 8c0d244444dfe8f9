"""Interface of smoothing methods, and absolute discounts estimated from counts of counts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from models.arrays import Int64s
from models.errors import InvalidInputError
from models.ngram.build import NGrams, NGramWeights
from training.corpus import EncodedCorpus
from training.ngram.counts import Observations


class Discounts(NamedTuple):
    """Discounts of n-gram counts of 1, 2, and 3 or more."""

    one: float
    two: float
    three_plus: float


FALLBACK_DISCOUNTS = Discounts(0.5, 1.0, 1.5)
"""Discounts for an order whose counts of counts allow no estimate, as in tiny texts or closed vocabularies."""

SINGLE_FALLBACK_DISCOUNT = Discounts(0.5, 0.5, 0.5)
"""Fallback discount for smoothings with one discount."""


def modified_discounts(counts_of_counts: Sequence[int] | Int64s) -> Discounts | None:
    """Estimate three discounts; None if no estimate exists.

    Y = n₁ / (n₁ + 2 n₂); D_j = j − (j + 1) Y n_{j+1} / n_j. No estimate exists if n₁, n₂ or n₃ is 0
    or a D_j is outside [0, j].

    Source: Chen and Goodman (1998), section 3.

    Args:
        counts_of_counts: number of n-grams with the count 0, 1, 2, 3, 4, ….
    """
    n = [int(count) for count in counts_of_counts]
    if 0 in n[1:4]:
        return None
    y = n[1] / (n[1] + 2 * n[2])
    discounts = [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)]
    if any(not 0 <= discount <= j for j, discount in enumerate(discounts, start=1)):
        return None
    return Discounts(*discounts)


def discounts_from_counts(
    counts_of_counts: Sequence[int] | Int64s, *, num_discounts: Literal[1, 3]
) -> tuple[Discounts, bool]:
    """Return one or three discounts, estimated or else constant, and True if they are estimated.

    One discount for all counts is D = n₁ / (n₁ + 2 n₂); no estimate exists if n₁ or n₂ is 0.

    Source: Ney, Essen and Kneser (1994), "On structuring probabilistic dependences in
    stochastic language modelling"; for three discounts, see `modified_discounts`.
    """
    if num_discounts == 3:
        found = modified_discounts(counts_of_counts)
        return found or FALLBACK_DISCOUNTS, found is not None
    once, twice = int(counts_of_counts[1]), int(counts_of_counts[2])
    if not (once and twice):
        return SINGLE_FALLBACK_DISCOUNT, False
    return Discounts(*[once / (once + 2 * twice)] * 3), True


class Smoothed(NamedTuple):
    """Back-off model by order, and statistics of its estimation.

    Attributes:
        orders: n-grams and weights of the orders 1, 2, …, for `build_automaton`.
        facts: fitted values for metrics.json: numbers, strings, and lists of them; see `NGramEstimate`.
    """

    orders: Sequence[tuple[NGrams, NGramWeights]]
    facts: Mapping[str, Any]


Smoothing: TypeAlias = Callable[[Observations, EncodedCorpus | None], Smoothed]
"""Smoothing method: estimates a normalised model from a counted text.

Parameters may be fitted on the second, held-out text, which has the same vocabulary. `InvalidInputError` is
raised if the text is required but missing, or has another vocabulary.
"""


def require_held_out(held_out: EncodedCorpus | None, *, key: str, what: str) -> EncodedCorpus:
    """Return the held-out text that a smoothing requires.

    Raises:
        InvalidInputError: there is no held-out text; the message names the recipe's key.
    """
    if held_out is None or held_out.num_sentences == 0:
        raise InvalidInputError(
            f"{key}: {what} are fitted on held-out text, but there is none; give --valid", parameter=key
        )
    return held_out
