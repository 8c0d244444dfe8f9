"""Reading a stretch of one text with a cache: what each token's window said of it."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.caching import kernels
from models.caching.history import History
from models.vocabulary import BOS

_QUERIES = 64  # tokens whose windows are gone through together


class CacheReading(NamedTuple):
    """What a cache made of T tokens.

    Attributes:
        shares: p_cache of each token under each of K values of θ [T, K]; −1 where the window was empty.
        history: what is remembered after them.
    """

    shares: npt.NDArray[np.float64]
    history: History


def remember(history: History, tokens: TokenIds, features: FloatArray) -> History:
    """The history after tokens [T], each with the features it followed [T, W]; `<s>` is never remembered."""
    kept = tokens != BOS
    return history.extended(tokens[kept], features[kept])


def read(
    history: History, tokens: TokenIds, features: FloatArray, *, flatnesses: npt.NDArray[np.float64]
) -> CacheReading:
    """Go along tokens that follow a history.

    Memory is bounded by the window and T together.

    Args:
        history: what is remembered before the first; its window is every token's.
        tokens: ids [T].
        features: what each of them follows [T, W]; W is 0 for a unigram cache.
        flatnesses: values of θ [K].
    """
    tokens = np.ascontiguousarray(tokens, dtype=np.int64)  # as the kernels are compiled for
    kept = tokens != BOS
    before = len(history)
    ends = before + np.cumsum(kept) - kept  # what is remembered when each token comes
    begins = np.maximum(ends - history.window, 0)
    new = np.ascontiguousarray(features[kept])
    remembered = np.concatenate([history.tokens, tokens[kept]], dtype=np.int32)
    shares = np.empty((len(tokens), len(flatnesses)), dtype=np.float64)
    for start in range(0, len(tokens), _QUERIES):
        cut = slice(start, start + _QUERIES)
        first, last = int(begins[start]), int(ends[cut][-1])
        likeness = np.empty((len(tokens[cut]), last - first), dtype=np.float32)
        if features.shape[1]:
            queries = np.ascontiguousarray(features[cut])
            old = history.features[first:]
            kernels.products(queries, old, 0, likeness)
            kernels.products(queries, new[max(first - before, 0) : last - before], len(old), likeness)
        else:
            likeness[:] = ages(last - first)
        kernels.target_shares(
            likeness,
            remembered[first:last],
            begins[cut] - first,
            ends[cut] - first,
            tokens[cut],
            flatnesses,
            shares[cut],
        )
    return CacheReading(shares, history.extended(tokens[kept], new))


def ages(count: int) -> FloatArray:
    """Minus the ages of so many tokens, the oldest first [count]; the newest has age 0."""
    return np.arange(1 - count, 1, dtype=np.float32)
