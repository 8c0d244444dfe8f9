"""Assembly of an automaton from sorted tables, batch by batch, into memory-mapped files.

N-grams are in the automaton's order, so words and probabilities are
written sequentially, and contexts of consecutive n-grams are close.
The arrays are mapped files: the system caches what fits into memory.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from models.arrays import AnyArray, Float64s, Int32s, Int64s, UInt32s
from models.errors import FormatError
from models.kernels.compilation import kernel
from models.ngram.automaton import EXACT_TYPES, Automaton
from models.ngram.build import check_ngram_counts, rank_arcs_in_blocks
from models.ngram.scoring import link_states
from training.ngram.smoothing.interpolation import log10
from training.progress import Progress
from training.scale.plan import word_columns

_BATCH = 1 << 17


def assemble(tables: Sequence[Path], folder: Path, progress: Progress) -> None:
    """Write an automaton's arrays into an empty folder, from the sorted tables' folders, by order from 1.

    Raises:
        InputError: more n-grams than the file format can index.
        FormatError: a table is damaged.
    """
    import pyarrow.parquet as pq

    sizes = [sum(pq.read_metadata(file).num_rows for file in table.glob("*.parquet")) for table in tables]
    check_ngram_counts(sizes)
    with progress.stage("building the automaton", sum(sizes)):
        building = _AutomatonBuilder(folder, sizes)
        for k, table in enumerate(tables, start=1):
            for batch in _batches(table, k):
                building.add(k, table, *batch)
                progress.advance(len(batch[0]))
            building.close_order(k)
        building.finish()


def open_automaton(folder: Path) -> Automaton:
    """Open the arrays written by `assemble`, memory-mapped."""
    return Automaton(**{name: _map(folder, name, "r") for name in EXACT_TYPES})


class _AutomatonBuilder:
    """Builder of an automaton's arrays, order by order, from numbers of n-grams by order."""

    def __init__(self, folder: Path, sizes: Sequence[int]) -> None:
        self._folder = folder
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        num_arcs, num_states = int(self._starts[-1]), 1 + int(self._starts[-2])
        self._first_arcs = self._array("first_arcs", num_states + 1)
        self._words = self._array("words", num_arcs)
        self._log10_probs = self._array("log10_probs", num_arcs)
        self._log10_backoffs = self._array("log10_backoffs", num_states)
        self._suffixes = self._array("suffixes", num_states)
        self._filled = 0
        self._last = np.full(len(sizes), -1, np.int32)
        self._path = np.zeros(len(sizes) + 1, np.int64)

    def add(self, k: int, table: Path, words: Int32s, probs: Float64s, backoffs: Float64s) -> None:
        """Write the next k-grams of a table, after all shorter n-grams; see `_batches`."""
        begin, size = self._filled, len(words)
        contexts = np.empty(size, np.int64)
        bad = _find_contexts(self._first_arcs, self._words, words, self._last, self._path, contexts)
        if bad >= 0:
            row = begin + bad - int(self._starts[k - 1])
            problem = f"row {row} is out of order, or its context is missing"
            raise FormatError(table, problem, hint="run the command again")
        self._words[begin : begin + size] = words[:, -1]
        self._log10_probs[begin : begin + size] = log10(probs)
        states, firsts, fan_outs = np.unique(contexts, return_index=True, return_counts=True)
        # offsets from `close_order` on
        self._first_arcs[states + 1] += fan_outs.astype(np.uint32)
        if k > 1:  # the empty context's weight is never used
            self._log10_backoffs[states] = log10(backoffs[firsts])
        self._filled += size

    def close_order(self, k: int) -> None:
        """Convert fan-outs of the k-grams' contexts to offsets of first arcs."""
        begin = int(self._starts[k - 2]) + 1 if k > 1 else 0
        end = int(self._starts[k - 1]) + 1
        running = int(self._first_arcs[begin])
        for start in range(begin + 1, end + 1, _BATCH):
            part = self._first_arcs[start : min(start + _BATCH, end + 1)]
            part[:] = running + np.cumsum(part, dtype=np.int64)
            running = int(part[-1])
        self._last[:] = -1

    def finish(self) -> None:
        """Link the states, and rank the arcs of states with many arcs."""
        self._suffixes[1:] = -1
        link_states(self._first_arcs, self._words, self._suffixes)
        _append(self._folder, "order_starts", self._starts)
        for name in ("prob_values", "backoff_values"):
            (self._folder / name).touch()
        ranked_arcs = 0
        for block in rank_arcs_in_blocks(self._first_arcs, self._log10_probs):
            for name, array in block._asdict().items():
                _append(self._folder, f"ranked_{name}", array)
            ranked_arcs += len(block.arcs)
        _append(self._folder, "ranked_starts", np.array([ranked_arcs], np.uint32))

    def _array(self, name: str, size: int) -> AnyArray:
        """Map a file of zeros, allocated now: a full disk is an error here, not a signal later."""
        with (self._folder / name).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size * np.dtype(EXACT_TYPES[name][0]).itemsize)
        return _map(self._folder, name, "r+")


def _map(folder: Path, name: str, mode: Literal["r", "r+"]) -> AnyArray:
    """Map an array's file as a plain array, as kernels require."""
    path, dtype = folder / name, np.dtype(EXACT_TYPES[name][0])
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        array = np.zeros(0, dtype)
        array.flags.writeable = mode != "r"
        return array
    return np.asarray(np.memmap(path, dtype, mode))


def _append(folder: Path, name: str, array: AnyArray) -> None:
    with (folder / name).open("ab") as file:
        file.write(array.astype(EXACT_TYPES[name][0], copy=False).data)


def _batches(table: Path, k: int) -> Iterator[tuple[Int32s, Float64s, Float64s]]:
    """Yield words [n, k], probabilities [n] and contexts' back-off weights [n] of a sorted k-gram table."""
    import pyarrow.parquet as pq

    for path in sorted(table.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                columns = [batch[name].to_numpy() for name in word_columns(1, k).split(", ")]
                yield np.stack(columns, axis=1), batch["p"].to_numpy(), batch["g"].to_numpy()


@kernel()
def _find_contexts(
    first_arcs: UInt32s, words: Int32s, rows: Int32s, last: Int32s, path: Int64s, contexts: Int64s
) -> int:
    """Find each row's [n, k] context's state, its first k − 1 words; return the first bad row, or −1.

    Args:
        first_arcs: see `Automaton`; complete for contexts shorter than k − 1 words.
        words: see `Automaton`; complete for the same contexts.
        rows: sorted n-grams of one length [n, k].
        last: n-gram before the first row, −1 if none; updated to the last row.
        path: states of its prefixes with 0, 1, … words; updated with it.
        contexts: output, the states [n].
    """
    k = rows.shape[1]
    # rows are sorted: only the path after the prefix shared with the previous is searched
    for i in range(len(rows)):
        shared = 0
        while shared < k and rows[i, shared] == last[shared]:
            shared += 1
        if shared == k or rows[i, shared] < last[shared]:
            return i
        for depth in range(shared, k - 1):
            begin, end = first_arcs[path[depth]], first_arcs[path[depth] + 1]
            arc = begin + np.searchsorted(words[begin:end], rows[i, depth])
            if arc >= end or words[arc] != rows[i, depth]:
                return i
            path[depth + 1] = arc + 1
        contexts[i] = path[k - 1]
        last[:k] = rows[i]
    return -1
