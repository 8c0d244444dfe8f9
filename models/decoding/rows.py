"""What compiled decoding needs to know of the R rows of a batch, and the room it works in."""

import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray

TEMPERATURE, TOP_K, TYPICAL_P, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY, END_AFTER = range(9)
"""Columns of `Rows.rules`; a temperature of 0 is greedy, a top-k of 0 none; `</s>` comes after so many tokens."""

SUM_BLOCK = 512
"""Entries of which sums are kept."""

HISTOGRAM_BUCKETS = 2048
"""Of a histogram."""

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]


class KernelRows(NamedTuple):
    """R rows, each with its own rules. Rows may share stretches of what has spans.

    Attributes:
        rules: numbers of each row [R, 9].
        bias_ids: tokens whose scores change.
        bias_values: what is added to each.
        bias_spans: the first of each row's, and the one after its last [R, 2].
        banned_ids: tokens that may not come next.
        banned_spans: likewise [R, 2].
        prompt_ids: tokens of prompts, each once in a row's part.
        prompt_spans: likewise [R, 2].
        history: tokens generated [R, at least the greatest length].
        lengths: how many each row has [R].
    """

    rules: Float64s
    bias_ids: Int32s
    bias_values: FloatArray
    bias_spans: Int64s
    banned_ids: Int32s
    banned_spans: Int64s
    prompt_ids: Int32s
    prompt_spans: Int64s
    history: Int32s
    lengths: Int64s


class KernelBuffers(NamedTuple):
    """Arrays that kernels write while they work on one row of V entries; V' is V rounded up to whole blocks.

    Attributes:
        scores: [V']; minus infinity past V.
        weights: [V']; likewise 0.
        keys: [V'].
        ids: [V'].
        indices: [V'].
        counts: [V]; all 0 between rows.
        histogram: [2048].
        sums: of each block [V' / 512].
    """

    scores: FloatArray
    weights: FloatArray
    keys: FloatArray
    ids: Int32s
    indices: Int32s
    counts: Int32s
    histogram: Float64s
    sums: Float64s


_MAX_WIDTHS = 32
"""For so many widths a thread keeps its room; models that have gone leave nothing behind."""


class _ThreadBuffers(threading.local):
    """Each thread's own, of the widths met last."""

    def __init__(self) -> None:
        self.by_width: dict[int, KernelBuffers] = {}


_thread_buffers = _ThreadBuffers()


def buffers_for(width: int) -> KernelBuffers:
    """This thread's room for rows of V entries: small enough to stay in the processor's nearer caches."""
    room = _thread_buffers.by_width.get(width)
    if room is None:
        if len(_thread_buffers.by_width) == _MAX_WIDTHS:
            del _thread_buffers.by_width[next(iter(_thread_buffers.by_width))]
        padded = -(-width // SUM_BLOCK) * SUM_BLOCK
        room = _thread_buffers.by_width[width] = KernelBuffers(
            np.full(padded, -np.inf, np.float32),
            np.zeros(padded, np.float32),
            np.zeros(padded, np.float32),
            np.zeros(padded, np.int32),
            np.zeros(padded, np.int32),
            np.zeros(width, np.int32),
            np.zeros(HISTOGRAM_BUCKETS),
            np.zeros(padded // SUM_BLOCK),
        )
    return room
