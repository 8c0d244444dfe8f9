"""Run slices of rows in threads, for kernels that release the interpreter lock.

The caller passes the number of threads, so torch is not needed.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np

from models.arrays import TokenIds

T = TypeVar("T")
MIN_TOKENS_PER_THREAD = 4096
"""Tokens at least for which a thread pays."""


def run_balanced(work: Callable[[slice], T], offsets: TokenIds, threads: int) -> list[T]:
    """Call `work` in parallel for segments of the rows with about the same number of tokens.

    Args:
        work: is given a segment of rows; spends its time outside the interpreter lock.
        offsets: where each row's tokens start, and the end [B + 1].
        threads: number of segments at most.

    Returns:
        The results of the calls, in order.
    """
    num_segments = max(1, min(threads, int(offsets[-1]) // MIN_TOKENS_PER_THREAD))
    cuts = np.searchsorted(offsets, np.linspace(0, offsets[-1], num_segments + 1)[1:-1]).tolist()
    return run_slices(work, [0, *cuts, len(offsets) - 1])


def run_slices(work: Callable[[slice], T], cuts: Sequence[int]) -> list[T]:
    """Call `work` for each segment between two cuts, one a thread; return the results in order."""
    segments = [slice(begin, end) for begin, end in pairwise(cuts)]
    if len(segments) == 1:
        return [work(segments[0])]
    with ThreadPoolExecutor(len(segments)) as pool:
        return list(pool.map(work, segments))
