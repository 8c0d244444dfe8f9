"""Reading a stretch of one text with a cache: what each token's window said of it."""

from typing import NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.caching import kernels
from models.caching.history import History
from models.caching.products import inner_products
from models.caching.weighing import SimilarityDecay
from models.vocabulary import BOS

_MAX_QUERIES = 128  # tokens whose windows are gone through together, at most
_MAX_COSINES = 1 << 21  # held at once, unless four windows have more


class CacheShares(NamedTuple):
    """What a cache made of T tokens.

    Attributes:
        shares: what part of all weights each token has under F values of θ and H half-lives [T, F, H],
            float32; 0 where the window was empty.
        evidence: the sum of the weights [T, F, H], float32; see `kernels.cache_shares`.
        history: what is remembered after them.
    """

    shares: FloatArray
    evidence: FloatArray
    history: History


def extend_history(history: History, tokens: TokenIds, features: FloatArray) -> History:
    """The history after tokens [T], each with the unit vector it followed [T, W]; `<s>` is never remembered."""
    kept = tokens != BOS
    return history.appended(tokens[kept], features[kept])


def score_with_history(
    history: History, tokens: TokenIds, features: FloatArray, *, decay: SimilarityDecay
) -> CacheShares:
    """Go along tokens that follow a history.

    Memory is bounded by the window and T together.

    Args:
        history: what is remembered before the first; its window is every token's.
        tokens: ids [T].
        features: the unit vectors that they follow [T, W]; W is 0 for a unigram cache.
        decay: of the history's window.
    """
    tokens = np.ascontiguousarray(tokens, dtype=np.int64)  # as the kernels are compiled for
    kept = tokens != BOS
    before = len(history)
    ends = before + np.cumsum(kept) - kept  # what is remembered when each token comes
    begins = np.maximum(ends - history.window, 0)
    new = np.ascontiguousarray(features[kept])
    remembered = np.concatenate([history.tokens, tokens[kept]], dtype=np.int32)
    shape = (len(tokens), len(decay.flatnesses), len(decay.decays))
    shares, evidence = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.float32)
    together = min(_MAX_QUERIES, max(4, _MAX_COSINES // max(len(remembered), 1)))
    for start in range(0, len(tokens), together):
        cut = slice(start, start + together)
        first, last = int(begins[start]), int(ends[cut][-1])
        likeness = np.zeros((len(tokens[cut]), last - first), dtype=np.float32)
        if features.shape[1]:
            queries = np.ascontiguousarray(features[cut])
            old = history.features[first:]
            inner_products(queries, old, 0, likeness)
            inner_products(queries, new[max(first - before, 0) : last - before], len(old), likeness)
        kernels.cache_shares(
            likeness,
            remembered[first:last],
            begins[cut] - first,
            ends[cut] - first,
            tokens[cut],
            decay.flatnesses,
            decay.decays,
            shares[cut],
            evidence[cut],
        )
    return CacheShares(shares, evidence, history.appended(tokens[kept], new))
