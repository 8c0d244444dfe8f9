"""The k most probable tokens of one or several distributions.

The compiled kernel is imported on demand, so a service starts without compiled code.
"""

from typing import TypeAlias

import numpy as np

from models.arrays import FloatArray
from models.language_model import TopTokens

TokenChoice: TypeAlias = int | tuple[int, ...]
"""Tokens to report at each position: how many of the most probable, or ids; 0 and () for none."""


def top_tokens(log_probs: FloatArray, k: int) -> TopTokens:
    """Rank the k most probable tokens; equal ones are by id.

    Args:
        log_probs: one distribution [V].
        k: from 1 to V.
    """
    kth = np.partition(log_probs, len(log_probs) - k)[len(log_probs) - k]
    candidates = np.flatnonzero(log_probs >= kth)  # more than k if others equal the k-th
    order = np.argsort(-log_probs[candidates], kind="stable")[:k]
    ids = candidates[order]
    return TopTokens(ids, log_probs[ids])


def top_of_rows(log_probs: FloatArray, k: TokenChoice) -> TopTokens:
    """Rank the k most probable tokens of R distributions; compiled, and fast for small k.

    Args:
        log_probs: [R, V].
        k: from 1 to V, or the ids of k tokens to look up instead, in this order.

    Returns:
        Ids and log-probabilities [R, k].
    """
    if isinstance(k, tuple):
        requested = np.array(k, np.int64)
        return TopTokens(np.broadcast_to(requested, (len(log_probs), len(k))), log_probs[:, requested])
    from models.decoding.sampling import write_top_tokens  # on demand: compiled code

    ids = np.empty((len(log_probs), k), np.int64)
    values = np.empty((len(log_probs), k), np.float32)
    write_top_tokens(np.ascontiguousarray(log_probs), ids, values)
    return TopTokens(ids, values)
