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
"""Fewer tokens are not worth a thread."""


def run_balanced(work: Callable[[slice], T], offsets: TokenIds, threads: int) -> list[T]:
    """Call `work` for shares of the rows with about the same number of tokens, side by side.

    Args:
        work: is given a stretch of rows; spends its time outside the interpreter lock.
        offsets: where each row's tokens start, and the end [B + 1].
        threads: at most so many shares.

    Returns:
        What each call returned, in order.
    """
    shares = max(1, min(threads, int(offsets[-1]) // MIN_TOKENS_PER_THREAD))
    cuts = np.searchsorted(offsets, np.linspace(0, offsets[-1], shares + 1)[1:-1]).tolist()
    return run_slices(work, [0, *cuts, len(offsets) - 1])


def run_slices(work: Callable[[slice], T], cuts: Sequence[int]) -> list[T]:
    """Call `work` for each stretch between two cuts, one a thread; what each returned, in order."""
    stretches = [slice(begin, end) for begin, end in pairwise(cuts)]
    if len(stretches) == 1:
        return [work(stretches[0])]
    with ThreadPoolExecutor(len(stretches)) as pool:
        return list(pool.map(work, stretches))
