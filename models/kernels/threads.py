"""Run parts of a computation in threads, for kernels that release the interpreter lock.

Unlike torch's threads, no thread waits for another.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np

from models.cores import usable_threads

P = TypeVar("P")
T = TypeVar("T")
STEP_ROWS_PER_THREAD = 32
"""Minimum rows per thread in a single step; measured by bench_int8."""

_ROW_MULTIPLE = 16  # a multiple of the rows of a product


@dataclass(slots=True)
class Threads:
    """Threads of one computation in int8.

    Attributes:
        limit: maximum number; None for NUMBA_NUM_THREADS, else that of `usable_threads`.
    """

    limit: int | None = None

    @property
    def most(self) -> int:
        """Maximum threads."""
        if self.limit is None:
            self.limit = usable_threads("NUMBA_NUM_THREADS")  # once: it reads files
        return self.limit


THREADS = Threads()
"""The limit of this process."""


def run_row_slices(work: Callable[[slice], T], count: int) -> list[T]:
    """Call `work` in threads for slices of rows from multiples of 16 on; return the results."""
    num_slices = min(THREADS.most, count // STEP_ROWS_PER_THREAD)
    if num_slices <= 1:
        return [work(slice(0, count))]
    cuts = np.linspace(0, -(-count // _ROW_MULTIPLE), num_slices + 1).astype(int) * _ROW_MULTIPLE
    return run_slices(work, np.minimum(cuts, count).tolist())


def run_slices(work: Callable[[slice], T], cuts: Sequence[int]) -> list[T]:
    """Call `work` for each segment between cuts, one per thread; return the results in order."""
    return run_parts(work, [slice(begin, end) for begin, end in pairwise(cuts)])


def run_parts(work: Callable[[P], T], parts: Sequence[P]) -> list[T]:
    """Call `work` for each part in a thread, the first in the caller's; return the results."""
    futures = [_pool(len(parts)).submit(work, part) for part in parts[1:]]
    try:
        first = work(parts[0])
    finally:
        wait(futures)
    return [first, *(future.result() for future in futures)]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rows")
