"""Run parts of a computation in threads, for kernels that release the interpreter lock.

Unlike torch's threads, no thread waits for another.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np

from models.arrays import TokenIds

P = TypeVar("P")
T = TypeVar("T")
MIN_TOKENS_PER_THREAD = 4096
"""Minimum number of tokens per thread."""


def run_balanced(work: Callable[[slice], T], offsets: TokenIds, threads: int) -> list[T]:
    """Call `work` in parallel for segments of rows with about equal numbers of tokens.

    Args:
        work: function of a segment of rows that releases the interpreter lock.
        offsets: start of each row's tokens, then the end [B + 1].
        threads: maximum number of segments.

    Returns:
        The results of the calls, in order.
    """
    num_segments = max(1, min(threads, int(offsets[-1]) // MIN_TOKENS_PER_THREAD))
    cuts = np.searchsorted(offsets, np.linspace(0, offsets[-1], num_segments + 1)[1:-1]).tolist()
    return run_slices(work, [0, *cuts, len(offsets) - 1])


def run_slices(work: Callable[[slice], T], cuts: Sequence[int]) -> list[T]:
    """Call `work` for each segment between two cuts, one per thread; return the results in order."""
    return run_parts(work, [slice(begin, end) for begin, end in pairwise(cuts)])


def run_parts(work: Callable[[P], T], parts: Sequence[P]) -> list[T]:
    """Call `work` for each part in its own thread, for the first in the caller's; return the results in order."""
    futures = [_pool(len(parts)).submit(work, part) for part in parts[1:]]
    try:
        first = work(parts[0])
    finally:
        wait(futures)
    return [first, *(future.result() for future in futures)]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rows")
