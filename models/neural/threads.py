"""Run shares of rows in as many threads as torch would take.

The kernels release the interpreter lock, and no thread waits for another as torch's own threads do.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

from models.neural.constants import STEP_ROWS_PER_THREAD

T = TypeVar("T")

_ROW_MULTIPLE = 16  # rows of a tile


def run_row_slices(work: Callable[[slice], None], count: int) -> None:
    """Call `work` for slices of the rows in as many threads as torch would use; they begin at multiples of 16."""
    num_slices = max(1, min(torch.get_num_threads(), count // STEP_ROWS_PER_THREAD))
    if num_slices == 1:
        work(slice(0, count))
        return
    cuts = np.linspace(0, -(-count // _ROW_MULTIPLE), num_slices + 1).astype(int) * _ROW_MULTIPLE
    run_parts(work, [slice(begin, min(end, count)) for begin, end in pairwise(cuts.tolist())])


def run_parts(work: Callable[[T], None], parts: Sequence[T]) -> None:
    """Call `work` for all parts, each in a thread: the first in the caller's thread."""
    futures = [_pool(torch.get_num_threads()).submit(work, part) for part in parts[1:]]
    try:
        work(parts[0])
    finally:
        wait(futures)
    for future in futures:
        future.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rows")
