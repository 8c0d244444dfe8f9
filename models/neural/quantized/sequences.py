"""Many sequences of different lengths at once, scored or read, in bounded memory."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.neural.quantized.network import QuantizedNetwork
from models.neural.quantized.rows import take
from models.neural.quantized.state import Hidden, QuantizedState
from models.neural.threads import share

ROWS = 64
"""Sequences computed side by side: few, so that those of a group are of like length."""

STEPS = 64
"""Tokens of each computed before their outputs are turned into scores."""

MIN_TOKENS = 512
"""Fewer tokens are not worth a thread."""

LEAST_ROWS = 8
"""Fewer rows are not, either, as each thread reads all weights."""


class Wanted(NamedTuple):
    """What is to be written while sequences are read.

    Attributes:
        scores: natural-log probabilities of the tokens [B, T].
        normalised: whether they are divided by what they sum to.
        features: what the output layer reads before each token [B, T, E].
    """

    scores: FloatArray | None = None
    normalised: bool = True
    features: FloatArray | None = None


class _Sequences(NamedTuple):
    tokens: TokenIds
    lengths: TokenIds
    hidden: Hidden
    """Of all rows; written over."""


def read_ragged(
    network: QuantizedNetwork,
    state: QuantizedState,
    tokens: TokenIds,
    lengths: TokenIds,
    *,
    wanted: Wanted,
    threads: int,
) -> QuantizedState:
    """The state after given tokens: row b has lengths[b] of tokens [B, T]; 0 leaves it as it was.

    Args:
        network: what computes.
        state: what came before, B rows.
        tokens: ids [B, T].
        lengths: [B], each in [0, T].
        wanted: what else to write.
        threads: at most so many share the rows.
    """
    sequences = _Sequences(tokens, lengths, tuple(part.copy() for part in state.hidden))
    shares = max(
        1, min(threads, int(lengths.sum()) // MIN_TOKENS, int(np.count_nonzero(lengths)) // LEAST_ROWS)
    )
    groups = list(_groups(lengths, shares))

    def read(some: Sequence[TokenIds]) -> None:
        for group in some:
            _read_group(network, sequences, group, wanted)

    share(read, [groups[number::shares] for number in range(shares)])
    return QuantizedState(sequences.hidden)


def _groups(lengths: TokenIds, shares: int) -> Iterator[TokenIds]:
    """Rows that are not empty, longest first, so that neighbours end together; up to `ROWS` at a time."""
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    size = max(1, min(ROWS, -(-len(order) // shares)))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _read_group(network: QuantizedNetwork, sequences: _Sequences, group: TokenIds, wanted: Wanted) -> None:
    """Read some rows to their ends."""
    lengths = sequences.lengths[group]
    for start in range(0, int(lengths[0]), STEPS):
        rows = group[: np.count_nonzero(lengths > start)]
        cut = slice(start, min(start + STEPS, int(lengths[0])))
        here = tuple(part[:, rows] for part in sequences.hidden)
        is_read = np.arange(cut.start, cut.stop)[:, None] < sequences.lengths[rows]
        stretch = np.where(is_read, sequences.tokens[rows, cut].T, 0)
        outputs = network.read(stretch, np.count_nonzero(is_read, axis=1), here)
        for part, changed in zip(sequences.hidden, outputs.hidden, strict=True):
            part[:, rows] = changed
        step, row = np.nonzero(is_read)
        if wanted.scores is not None:
            before = take(outputs.rows, step * len(rows) + row)
            predict = network.target_log_probs if wanted.normalised else network.target_logits
            wanted.scores[rows[row], start + step] = predict(before, stretch[step, row])
        if wanted.features is not None:
            wanted.features[rows[row], start + step] = network.features(outputs.before[step, row])
