"""Many sequences of different lengths at once, scored or read, in bounded memory."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.neural.quantized.network import Int8Network
from models.neural.quantized.rows import take_rows
from models.neural.quantized.state import HiddenArrays, Int8State
from models.neural.threads import run_parts

INT8_GROUP_ROWS = 64
"""Sequences computed side by side: few, so that those of a group are of like length."""

INT8_SEGMENT_STEPS = 64
"""Tokens of each computed before their outputs are turned into scores."""

INT8_TOKENS_PER_THREAD = 512
"""Fewer tokens are not worth a thread."""

INT8_ROWS_PER_THREAD = 8
"""Fewer rows are not, either, as each thread reads all weights."""


class Want(NamedTuple):
    """What is to be written while sequences are read.

    Attributes:
        scores: natural-log probabilities of the tokens [B, T].
        normalised: whether they are divided by what they sum to.
        features: what the output layer reads before each token [B, T, E].
    """

    scores: FloatArray | None = None
    normalised: bool = True
    features: FloatArray | None = None


class _Int8Sequences(NamedTuple):
    tokens: TokenIds
    lengths: TokenIds
    hidden: HiddenArrays
    """Of all rows; written over."""


def read_int8_batch(
    network: Int8Network,
    state: Int8State,
    tokens: TokenIds,
    lengths: TokenIds,
    *,
    wanted: Want,
    threads: int,
) -> Int8State:
    """The state after given tokens: row b has lengths[b] of tokens [B, T]; 0 leaves it as it was.

    Args:
        network: what computes.
        state: what came before, B rows.
        tokens: ids [B, T].
        lengths: [B], each in [0, T].
        wanted: what else to write.
        threads: at most so many share the rows.
    """
    sequences = _Int8Sequences(tokens, lengths, tuple(part.copy() for part in state.hidden))
    shares = max(
        1,
        min(
            threads,
            int(lengths.sum()) // INT8_TOKENS_PER_THREAD,
            int(np.count_nonzero(lengths)) // INT8_ROWS_PER_THREAD,
        ),
    )
    groups = list(_int8_length_groups(lengths, shares))

    def read(some: Sequence[TokenIds]) -> None:
        for group in some:
            _read_int8_group(network, sequences, group, wanted)

    run_parts(read, [groups[number::shares] for number in range(shares)])
    return Int8State(sequences.hidden)


def _int8_length_groups(lengths: TokenIds, shares: int) -> Iterator[TokenIds]:
    """Rows that are not empty, longest first, so that neighbours end together; up to `ROWS` at a time."""
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    size = max(1, min(INT8_GROUP_ROWS, -(-len(order) // shares)))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _read_int8_group(network: Int8Network, sequences: _Int8Sequences, group: TokenIds, wanted: Want) -> None:
    """Read some rows to their ends."""
    lengths = sequences.lengths[group]
    for start in range(0, int(lengths[0]), INT8_SEGMENT_STEPS):
        rows = group[: np.count_nonzero(lengths > start)]
        cut = slice(start, min(start + INT8_SEGMENT_STEPS, int(lengths[0])))
        here = tuple(part[:, rows] for part in sequences.hidden)
        is_read = np.arange(cut.start, cut.stop)[:, None] < sequences.lengths[rows]
        stretch = np.where(is_read, sequences.tokens[rows, cut].T, 0)
        outputs = network.read(stretch, np.count_nonzero(is_read, axis=1), here)
        for part, changed in zip(sequences.hidden, outputs.hidden, strict=True):
            part[:, rows] = changed
        step, row = np.nonzero(is_read)
        if wanted.scores is not None:
            before = take_rows(outputs.rows, step * len(rows) + row)
            predict = network.target_log_probs if wanted.normalised else network.target_logits
            wanted.scores[rows[row], start + step] = predict(before, stretch[step, row])
        if wanted.features is not None:
            wanted.features[rows[row], start + step] = network.features(outputs.before[step, row])
