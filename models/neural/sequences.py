"""Read many sequences of different lengths, in bounded memory and several threads; imports no torch.

Sequences are sorted by length and read in groups, the longest first; finished rows are removed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.kernels.threads import run_parts, run_slices
from models.language_model import ReadResult, Want
from models.neural.constants import STEP_ROWS_PER_THREAD
from models.neural.network_model import NeuralState
from models.vocabulary import EOS


@dataclass(slots=True)
class Threads:
    """Threads of one computation in int8.

    Attributes:
        limit: maximum number; None for numba's default: NUMBA_NUM_THREADS, or the number of cores if it is not set.
    """

    limit: int | None = None

    @property
    def most(self) -> int:
        """Maximum number of threads."""
        if self.limit is not None:
            return self.limit
        from numba.core import config  # deferred: a service sets the limit before it needs numba

        return int(vars(config)["NUMBA_NUM_THREADS"])  # numba sets it at run time


THREADS = Threads()
"""The limit of this process."""

_ROW_MULTIPLE = 16  # a multiple of the rows of a product


def run_row_slices(work: Callable[[slice], None], count: int) -> None:
    """Call `work` for slices of rows in several threads; slices begin at multiples of 16."""
    num_slices = min(THREADS.most, count // STEP_ROWS_PER_THREAD)
    if num_slices <= 1:
        work(slice(0, count))
        return
    cuts = np.linspace(0, -(-count // _ROW_MULTIPLE), num_slices + 1).astype(int) * _ROW_MULTIPLE
    run_slices(work, np.minimum(cuts, count).tolist())


class BatchReader(ABC):
    """Interface of a network that reads segments.

    Args:
        group_rows: sequences per group: few, so their lengths are similar.
        segment_steps: tokens of each sequence per pass of the body and the output layer.
    """

    def __init__(self, group_rows: int, segment_steps: int) -> None:
        self.group_rows, self.segment_steps = group_rows, segment_steps

    @abstractmethod
    def read(
        self, tokens: TokenIds, is_read: Any, hidden: tuple[Any, ...], *, exact: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """Read the next tokens of rows that have not ended.

        Args:
            tokens: ids [T, B]; `</s>` past the end of a row.
            is_read: mask of the tokens to read [T, B].
            hidden: state of the rows before the tokens; it may be overwritten.
            exact: whether the final state is needed for rows that end in the segment.

        Returns:
            The body's outputs before each token, as input of the other methods; and the state after the segment,
            undefined for rows that end in it unless `exact`.
        """

    @abstractmethod
    def scores(
        self, before: Any, steps: TokenIds, rows: TokenIds, ids: TokenIds, *, normalised: bool
    ) -> FloatArray:
        """Return log-probabilities or logits [N] of ids at steps [N] of rows [N]."""

    @abstractmethod
    def take(self, before: Any, steps: TokenIds, rows: TokenIds) -> Any:
        """Return outputs [N, W] before steps [N] of rows [N]."""

    @abstractmethod
    def join(self, outputs: Sequence[Any], order: TokenIds) -> NeuralState:
        """Return a state, for prediction only, of concatenated results of `take` in a given order [N]."""

    @abstractmethod
    def shares(self, lengths: TokenIds) -> int:
        """Return the number of threads for sequences of given lengths [B]."""


def read_batch(
    reader: BatchReader, state: NeuralState, tokens: TokenIds, lengths: TokenIds, want: Want
) -> ReadResult:
    """Read lengths[b] tokens of each row b of tokens [B, T]; see `SequenceReader.read`."""
    log_probs = np.zeros(tokens.shape if want.scores else (0, 0), dtype=np.float32)
    result = ReadResult(log_probs, state.select(np.arange(len(state))) if want.state else state)
    before: list[tuple[TokenIds, Any]] = []  # numbers of tokens and outputs before them
    num_shares = reader.shares(lengths)
    groups = list(_length_groups(lengths, num_shares, reader.group_rows))

    def read(assigned: Sequence[TokenIds]) -> None:
        for rows in assigned:
            _read_group(reader, state.select(rows), tokens, lengths, rows, want, result, before)

    run_parts(read, [groups[number::num_shares] for number in range(num_shares)])
    if not (want.before or want.features):
        return result
    if not before:
        return result._replace(before=state.select(np.zeros(0, np.int64)))
    order = np.argsort(np.concatenate([numbers for numbers, _ in before]))
    return result._replace(before=reader.join([outputs for _, outputs in before], order))


def _length_groups(lengths: TokenIds, num_shares: int, most: int) -> Iterator[TokenIds]:
    """Yield groups of at most `most` non-empty rows, longest first, so the rows of a group end close together."""
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    size = max(1, min(most, -(-len(order) // num_shares)))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _read_group(
    reader: BatchReader,
    state: NeuralState,
    tokens: TokenIds,
    lengths: TokenIds,
    group: TokenIds,
    want: Want,
    result: ReadResult,
    before: list[tuple[TokenIds, Any]],
) -> None:
    """Read non-empty rows, sorted by descending length, to their ends.

    `state` is overwritten; results are written to `result` and appended to `before`.
    """
    longest, lengths = int(lengths[group[0]]), lengths[group]
    for start in range(0, longest, reader.segment_steps):
        end = min(start + reader.segment_steps, longest)
        rows = group[: np.count_nonzero(lengths > start)]
        is_read = np.arange(start, end)[:, None] < lengths[: len(rows)]
        # entries past a row's length may be invalid ids
        ids = np.where(is_read, tokens[rows, start:end].T, EOS)
        hidden = tuple(part[:, : len(rows)] for part in state.hidden)
        outputs, after = reader.read(ids, is_read, hidden, exact=want.state)
        for part, changed in zip(state.hidden, after, strict=True):
            part[:, : len(rows)] = changed
        step, row = np.nonzero(is_read)
        if want.scores:
            scores = reader.scores(outputs, step, row, ids[step, row], normalised=want.normalised)
            result.log_probs[rows[row], start + step] = scores
        if want.before or want.features:
            before.append((rows[row] * tokens.shape[1] + start + step, reader.take(outputs, step, row)))
    if want.state:
        for part, changed in zip(result.state.hidden, state.hidden, strict=True):
            part[:, group] = changed
