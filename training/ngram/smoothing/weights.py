"""The form in which every smoothing hands over its model."""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.ngram.build import NGrams, NGramWeights

DoubleArray: TypeAlias = npt.NDArray[np.float64]


class EstimatedOrder(NamedTuple):
    """What estimating one order gives.

    Attributes:
        ngrams: its n-grams [n].
        log10_probs: theirs [n], float32.
        log10_backoffs: of its contexts, the n-grams of the order below [m], float32.
    """

    ngrams: NGrams
    log10_probs: npt.NDArray[np.float32]
    log10_backoffs: npt.NDArray[np.float32]


def attach_backoffs(estimated: Iterable[EstimatedOrder]) -> list[tuple[NGrams, NGramWeights]]:
    """Put each back-off weight beside its n-gram: those found with order k belong to order k − 1.

    The empty context's is never charged, and the longest n-grams are no contexts.
    """
    orders = list(estimated)
    nothing = np.zeros(0, dtype=np.float32)
    log10_backoffs = [*(order.log10_backoffs for order in orders[1:]), nothing]
    return [
        (order.ngrams, NGramWeights(order.log10_probs, backoffs))
        for order, backoffs in zip(orders, log10_backoffs, strict=True)
    ]


def uniform_distribution(vocab_size: int) -> DoubleArray:
    """What stands below the unigrams [1]: the same probability for every word but `<s>`."""
    return np.full(1, 1.0 / (vocab_size - 1))


def log10(values: DoubleArray) -> npt.NDArray[np.float32]:
    """Logarithms in single precision; that of 0 is minus infinity."""
    with np.errstate(divide="ignore"):
        return np.log10(values).astype(np.float32)
