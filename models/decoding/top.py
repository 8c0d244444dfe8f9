"""The first few of many numbers, in order, compiled: the most probable tokens of whole batches."""

from typing import Any

import numba
import numpy as np
from numba import types

from models.decoding.choosing import LOG_PROBS_TYPE


@numba.njit(nogil=True)
def insert_sorted(values: Any, items: Any, value: Any, item: Any) -> None:
    """Put a value, greater than the last, into its place among values in descending order, after its equals."""
    place = len(values) - 1
    while place > 0 and values[place - 1] < value:
        values[place], items[place] = values[place - 1], items[place - 1]
        place -= 1
    values[place], items[place] = value, item


@numba.njit(types.void(LOG_PROBS_TYPE, types.int64[:, ::1], types.float32[:, ::1]), nogil=True, cache=True)
def write_top_tokens(log_probs: Any, ids: Any, values: Any) -> None:
    """Write the greatest entries of each row of log_probs [R, V], the greatest first; of equal ones by id.

    Args:
        log_probs: of R rows.
        ids: written, [R, k].
        values: written, [R, k].
    """
    last = ids.shape[1] - 1
    for row in range(len(log_probs)):
        # the first entries as they come, so that impossible ones have their places too
        for token in range(last + 1):
            values[row, token] = np.float32(-np.inf)
            insert_sorted(values[row, : token + 1], ids[row, : token + 1], log_probs[row, token], token)
        least = values[row, last]
        for token in range(last + 1, log_probs.shape[1]):
            if log_probs[row, token] > least:
                insert_sorted(values[row], ids[row], log_probs[row, token], token)
                least = values[row, last]
