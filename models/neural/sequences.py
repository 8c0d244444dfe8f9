"""Read many sequences of different lengths, in bounded memory and several threads; imports no torch.

Sequences are sorted by length and read in groups, the longest first; finished rows are removed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.arrays import TokenIds
from models.kernels.threads import run_parts, run_slices
from models.language_model import ReadResult, Want
from models.neural.constants import STEP_ROWS_PER_THREAD
from models.neural.network_model import NetworkModel, NeuralState
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


def read_batch(
    model: NetworkModel, state: NeuralState, tokens: TokenIds, lengths: TokenIds, want: Want
) -> ReadResult:
    """Read lengths[b] tokens of each row b of tokens [B, T]; see `SequenceReader.read`."""
    log_probs = np.zeros(tokens.shape if want.scores else (0, 0), dtype=np.float32)
    result = ReadResult(log_probs, state.select(np.arange(len(state))) if want.state else state)
    before: list[tuple[TokenIds, Any]] = []  # numbers of tokens and outputs before them
    num_shares = model.num_shares(lengths)
    groups = list(_length_groups(lengths, num_shares, model.group_rows))

    def read(assigned: Sequence[TokenIds]) -> None:
        for rows in assigned:
            _read_group(model, state.select(rows), tokens, lengths, rows, want, result, before)

    run_parts(read, [groups[number::num_shares] for number in range(num_shares)])
    if not (want.before or want.features):
        return result
    if not before:
        return result._replace(before=state.select(np.zeros(0, np.int64)))
    order = np.argsort(np.concatenate([numbers for numbers, _ in before]))
    return result._replace(before=model.join_outputs([outputs for _, outputs in before], order))


def _length_groups(lengths: TokenIds, num_shares: int, most: int) -> Iterator[TokenIds]:
    """Yield groups of at most `most` non-empty rows, longest first, so the rows of a group end close together."""
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    size = max(1, min(most, -(-len(order) // num_shares)))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _read_group(
    model: NetworkModel,
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
    for start in range(0, longest, model.segment_steps):
        end = min(start + model.segment_steps, longest)
        rows = group[: np.count_nonzero(lengths > start)]
        is_read = np.arange(start, end)[:, None] < lengths[: len(rows)]
        # entries past a row's length may be invalid ids
        ids = np.where(is_read, tokens[rows, start:end].T, EOS)
        hidden = tuple(part[:, : len(rows)] for part in state.hidden)
        outputs, after = model.read_segment(ids, is_read, hidden, exact=want.state)
        for part, changed in zip(state.hidden, after, strict=True):
            part[:, : len(rows)] = changed
        step, row = np.nonzero(is_read)
        if want.scores:
            scores = model.score_outputs(outputs, step, row, ids[step, row], normalised=want.normalised)
            result.log_probs[rows[row], start + step] = scores
        if want.before or want.features:
            before.append(
                (rows[row] * tokens.shape[1] + start + step, model.take_outputs(outputs, step, row))
            )
    if want.state:
        result.state.assign(group, state)
