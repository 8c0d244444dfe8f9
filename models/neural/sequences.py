"""Score or read many sequences of different lengths, in bounded memory, with torch or int8 networks.

Sequences are sorted by length and computed in groups, the longest first; rows that have ended drop
out.

oneDNN, which computes LSTM layers on CPUs, keeps a compiled primitive for every shape it has met
(pytorch issue 41486), so memory would grow with every new batch size: rows are padded to one of a
few counts, and ragged ends are read in segments of powers of two. oneDNN also repacks the weights
at every call, which a single step of few rows does not repay: there the plain cell is two to five
times faster. Networks with `accepts_any_shape` need none of this.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.arrays import FloatArray, TokenIds
from models.neural.cells import Hidden
from models.neural.int8.matrix import take_rows
from models.neural.int8.network import Int8Network
from models.neural.network import Network
from models.neural.state import HiddenArrays, Int8State, NeuralState
from models.neural.threads import run_parts
from models.vocabulary import EOS

PLAIN_CELL_ROWS = 32
"""Up to so many rows, one step by the plain cell beats the layer's kernel on a CPU."""


def advance_one(network: Network, tokens: Tensor, hidden: Hidden) -> Hidden:
    """Consume one token a row.

    Args:
        network: in evaluation mode.
        tokens: ids [B].
        hidden: what is carried; it is not changed.

    Returns:
        What is carried on, of the same shapes.
    """
    if tokens.is_cuda or (tokens.shape[0] > PLAIN_CELL_ROWS and not network.accepts_any_shape):
        return advance_many(network, tokens[None], hidden)[1]
    return network.step(tokens, hidden)


def advance_many(network: Network, tokens: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
    """Consume T tokens a row.

    Args:
        network: in evaluation mode.
        tokens: ids [T, B]; the caller keeps the number of different T small.
        hidden: what is carried; it is not changed.

    Returns:
        The body's outputs [T, B, W] and what is carried on.
    """
    hidden = tuple(part.contiguous() for part in hidden)  # cuDNN takes no other
    rows = tokens.shape[1]
    extra = 0 if tokens.is_cuda or network.accepts_any_shape else _padded_row_count(rows) - rows
    if extra:
        tokens = torch.cat([tokens, tokens.new_zeros(tokens.shape[0], extra)], dim=1)
        hidden = tuple(
            torch.cat([part, part.new_zeros(len(part), extra, part.shape[2])], 1) for part in hidden
        )
    outputs, after = network(tokens, hidden)
    if extra:
        outputs, after = outputs[:, :rows], tuple(part[:, :rows].contiguous() for part in after)
    return outputs, after


def advance_ragged(network: Network, tokens: Tensor, lengths: Tensor, hidden: Hidden) -> Hidden:
    """Consume as many tokens of each row as its length says.

    Args:
        network: in evaluation mode.
        tokens: ids [T, B].
        lengths: [B], on the CPU, descending, each in [1, T].
        hidden: what is carried; it is not changed.

    Returns:
        What is carried on, of the same shapes.
    """
    after = tuple(part.clone() for part in hidden)
    any_width = tokens.is_cuda or network.accepts_any_shape
    for start, end, alive in ragged_segments(lengths.numpy(), any_width=any_width, most=len(tokens)):
        before = tuple(part[:, :alive] for part in after)
        stretch = tokens[start:end, :alive]
        hidden_after = (
            advance_one(network, stretch[0], before)
            if end - start == 1
            else advance_many(network, stretch, before)[1]
        )
        for part, changed in zip(after, hidden_after, strict=True):
            part[:, :alive] = changed
    return after


def ragged_segments(lengths: TokenIds, *, any_width: bool, most: int) -> Iterator[tuple[int, int, int]]:
    """Pieces of rows of these lengths [B], descending, each in [1, T], in none of which a row ends before its end.

    Args:
        lengths: of the rows.
        any_width: False if there are to be few different widths: powers of two.
        most: tokens of a row in one piece.

    Yields:
        The first column, the one after the last, and how many rows, the first ones, go through it.
    """
    start = 0
    for end in np.unique(lengths).tolist():  # ascending: at each end, some rows stop
        alive = int(np.count_nonzero(lengths >= end))
        while start < end:
            left = min(end - start, most)
            width = left if any_width else 1 << (left.bit_length() - 1)
            yield start, start + width, alive
            start += width


def _padded_row_count(rows: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, …: at most a half more, a sixth on average."""
    power = 1 << max(rows - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power


GROUP_ROWS = 64
"""Sequences computed side by side: few, so that those of a group are of like length."""

SEGMENT_STEPS = 128
"""Tokens of each computed before their outputs are turned into scores."""

MAX_LOGITS = 1 << 21
"""Logits held at once (8 MiB): the output layer's matrix product stays in a CPU's cache."""

MAX_CHOICE_LOGITS = 1 << 22
"""The same where several tokens are scored after one text: a product of more rows at once is faster yet."""

GROUP_ROWS_ON_CUDA = 256
MAX_LOGITS_ON_CUDA = 1 << 27
"""The same on a CUDA device, which is the faster the more it has to do at once (512 MiB of logits)."""

_STEPS_MULTIPLE = 8  # stretches are padded to it: each new length costs a compiled kernel

_MAX_POSITIONS = 1024
"""Of networks that take any shape, tokens of all rows read at once: rows drop out soon after their ends."""

_MAX_DISTRIBUTIONS = 8192
"""Distributions summed up at once by an output layer that holds few logits: it reads its weights the less often."""


def score_batch(
    network: Network, state: NeuralState, tokens: TokenIds, lengths: TokenIds, *, normalised: bool = True
) -> FloatArray:
    """Natural-log probabilities [B, T] of given tokens, 0 past a row's length.

    Args:
        network: in evaluation mode.
        state: what came before, B rows.
        tokens: ids [B, T].
        lengths: [B], each in [0, T].
        normalised: False for logits instead, whatever they sum to.
    """
    scores = np.zeros(tokens.shape, dtype=np.float32)
    for rows in _length_groups(lengths, _rows_at_once(state)):
        _score_group(network, state.select(rows), tokens, lengths, rows, scores=scores, normalised=normalised)
    return scores


def features_of_batch(
    network: Network,
    state: NeuralState,
    tokens: TokenIds,
    lengths: TokenIds,
    *,
    scores: FloatArray | None = None,
) -> FloatArray:
    """What the output layer reads before each of given tokens [B, T, E], 0 past a row's length.

    Args:
        network: in evaluation mode.
        state: what came before, B rows.
        tokens: ids [B, T].
        lengths: [B], each in [0, T].
        scores: [B, T]; if given, the tokens' natural-log probabilities are written into it.
    """
    features = np.zeros((*tokens.shape, network.feature_size), dtype=np.float32)
    for rows in _length_groups(lengths, _rows_at_once(state)):
        _score_group(network, state.select(rows), tokens, lengths, rows, scores=scores, features=features)
    return features


def read_batch(
    network: Network,
    state: NeuralState,
    tokens: TokenIds,
    lengths: TokenIds,
    *,
    scores: FloatArray,
    features: FloatArray | None = None,
) -> NeuralState:
    """Score given tokens and tell the state after them, in one pass.

    Args:
        network: in evaluation mode.
        state: what came before, B rows.
        tokens: ids [B, T].
        lengths: [B], each in [0, T].
        scores: [B, T]; natural-log probabilities are written into it.
        features: [B, T, E]; if given, what the output layer reads before each token is written into it.
    """
    hidden = tuple(part.clone() for part in state.hidden)
    for rows in _length_groups(lengths, _rows_at_once(state)):
        index = torch.as_tensor(rows, device=state.top.device)
        after = _read_group(network, state.select(rows), tokens, lengths, rows, scores, features)
        for part, changed in zip(hidden, after, strict=True):
            part[:, index] = changed
    return NeuralState(hidden)


def prefill_batch(network: Network, state: NeuralState, tokens: TokenIds, lengths: TokenIds) -> NeuralState:
    """The state after given tokens: row b has lengths[b] of tokens [B, T]; 0 leaves it as it was."""
    hidden = tuple(part.clone() for part in state.hidden)
    for rows in _length_groups(lengths, _rows_at_once(state)):
        index = torch.as_tensor(rows, device=state.top.device)
        after = _prefill_group(network, state.select(rows), tokens[rows], lengths[rows])
        for part, changed in zip(hidden, after.hidden, strict=True):
            part[:, index] = changed
    return NeuralState(hidden)


def score_choices_after(network: Network, outputs: Tensor, rows: TokenIds, ids: TokenIds) -> FloatArray:
    """Log-probabilities [C] of ids [C], each after one of N texts.

    Args:
        network: in evaluation mode.
        outputs: that the texts led to [N, W].
        rows: which text each id is after, never falling [C].
        ids: that may come next.
    """
    held = MAX_LOGITS_ON_CUDA if outputs.is_cuda else MAX_CHOICE_LOGITS
    size = _MAX_DISTRIBUTIONS if network.output.streams_logits else max(1, held // network.vocab_size)
    scores = np.empty(len(ids), dtype=np.float32)
    for start in range(0, len(outputs), size):
        cut = slice(*np.searchsorted(rows, [start, start + size]))
        if cut.start == cut.stop:
            continue
        here, chosen = (
            torch.as_tensor(part, device=outputs.device) for part in (rows[cut] - start, ids[cut])
        )
        told = network.choice_log_probs(outputs[start : start + size], here, chosen)
        scores[cut] = told.cpu().numpy()
    return scores


def _rows_at_once(state: NeuralState) -> int:
    return GROUP_ROWS_ON_CUDA if state.top.is_cuda else GROUP_ROWS


def _length_groups(lengths: TokenIds, most: int) -> Iterator[TokenIds]:
    """Rows that are not empty, longest first, so that neighbours end together; so many at a time at most."""
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    for start in range(0, len(order), most):
        yield order[start : start + most]


def _score_group(
    network: Network,
    state: NeuralState,
    tokens: TokenIds,
    lengths: TokenIds,
    rows: TokenIds,
    *,
    scores: FloatArray | None = None,
    features: FloatArray | None = None,
    normalised: bool = True,
) -> None:
    """Scores [B, T] and features [B, T, E] of some rows, sorted by length, the longest first; none is empty."""
    device = state.top.device
    tokens, lengths = tokens[rows, : lengths[rows[0]]], lengths[rows]
    batch, width = tokens.shape
    padding = 0 if network.accepts_any_shape else -width % _STEPS_MULTIPLE
    padded = np.full((batch, width + padding), EOS, dtype=np.int64)
    is_given = np.arange(width) < lengths[:, None]
    padded[:, :width][is_given] = tokens[is_given]  # what lies past a row's length may be no id
    hidden, last = state.hidden, state.top
    steps = _steps_at_once(network, batch)
    for start in range(0, width, steps):
        alive = int(np.count_nonzero(lengths > start))
        stretch = torch.as_tensor(padded[:alive, start : start + steps].T.copy(), device=device)  # [t, alive]
        outputs, hidden = advance_many(network, stretch, tuple(part[:, :alive] for part in hidden))
        # the first token follows what came before, each other one the token left of it
        contexts = torch.cat([last[None, :alive], outputs[:-1]])
        last = outputs[-1]
        row, column = np.nonzero(np.arange(start, min(start + steps, width)) < lengths[:alive, None])
        wanted = contexts[torch.as_tensor(column, device=device), torch.as_tensor(row, device=device)]
        if features is not None:
            features[rows[row], start + column] = network.features(wanted).cpu().numpy()
        if scores is not None:
            ids = torch.as_tensor(padded[row, start + column], device=device)
            scores[rows[row], start + column] = _score_positions(network, wanted, ids, normalised=normalised)


def _steps_at_once(network: Network, batch: int) -> int:
    return max(1, min(SEGMENT_STEPS, _MAX_POSITIONS // batch)) if network.accepts_any_shape else SEGMENT_STEPS


def _read_group(
    network: Network,
    state: NeuralState,
    tokens: TokenIds,
    lengths: TokenIds,
    rows: TokenIds,
    scores: FloatArray,
    features: FloatArray | None,
) -> Hidden:
    """What is carried on after rows that are sorted by length, the longest first, none of them empty."""
    device, lengths = state.top.device, lengths[rows]
    ids = torch.as_tensor(tokens[rows, : lengths[0]].T.astype(np.int64), device=device)
    hidden = tuple(part.clone() for part in state.hidden)
    any_width = ids.is_cuda or network.accepts_any_shape
    held = _MAX_POSITIONS if network.accepts_any_shape else len(rows) * SEGMENT_STEPS
    contexts: list[Tensor] = []
    size = begin = 0
    for start, end, alive in ragged_segments(lengths, any_width=any_width, most=SEGMENT_STEPS):
        before = tuple(part[:, :alive] for part in hidden)
        outputs, after = _read_segment(network, ids[start:end, :alive], before)
        contexts.append(torch.cat([before[0], outputs]).flatten(0, 1))  # before they are written over
        for part, changed in zip(hidden, after, strict=True):
            part[:, :alive] = changed
        size += alive * (end - start)
        if size >= held or end == lengths[0]:
            column, row = np.nonzero(np.arange(begin, end)[:, None] < lengths)
            column += begin
            _write_scores(
                network, torch.cat(contexts), ids[column, row], (rows[row], column), scores, features
            )
            contexts, size, begin = [], 0, end
    return hidden


def _read_segment(network: Network, ids: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
    """The outputs after all but the last of ids [T, B] and what is carried on after that."""
    if len(ids) == 1:
        return hidden[0][:0], advance_one(network, ids[0], hidden)
    outputs, after = advance_many(network, ids, hidden)
    return outputs[:-1], after


def _write_scores(
    network: Network,
    contexts: Tensor,
    ids: Tensor,
    places: tuple[TokenIds, TokenIds],
    scores: FloatArray,
    features: FloatArray | None,
) -> None:
    """Write at places [N] of [B, T] what is told of ids [N] after outputs [N, W]."""
    if features is not None:
        features[places] = network.features(contexts).cpu().numpy()
    scores[places] = _score_positions(network, contexts, ids, normalised=True)


def _prefill_group(network: Network, state: NeuralState, tokens: TokenIds, lengths: TokenIds) -> NeuralState:
    """The state after rows that are sorted by length, the longest first; none is empty."""
    hidden = tuple(part.clone() for part in state.hidden)
    for start in range(0, int(lengths[0]), SEGMENT_STEPS):
        alive = int(np.count_nonzero(lengths > start))
        ids = tokens[:alive, start : start + SEGMENT_STEPS].T.astype(np.int64)
        stretch = torch.as_tensor(ids, device=state.top.device)
        before = tuple(part[:, :alive] for part in hidden)
        if lengths[alive - 1] >= start + SEGMENT_STEPS:  # all go through
            after = advance_many(network, stretch, before)[1]
        else:
            left = torch.as_tensor(np.minimum(lengths[:alive] - start, SEGMENT_STEPS))
            after = advance_ragged(network, stretch, left, before)
        for part, changed in zip(hidden, after, strict=True):
            part[:, :alive] = changed
    return NeuralState(hidden)


def _score_positions(network: Network, outputs: Tensor, ids: Tensor, *, normalised: bool) -> FloatArray:
    """Log-probabilities or logits [N] of ids [N], each after the text that led to the output [N, hidden]."""
    of_targets = network.target_log_probs if normalised else network.target_logits
    held = MAX_LOGITS_ON_CUDA if ids.is_cuda else MAX_LOGITS
    size = max(1, held // (network.vocab_size if normalised else outputs.shape[1]))
    if normalised and network.output.streams_logits:
        size = _MAX_DISTRIBUTIONS
    scores = torch.empty(len(ids), device=ids.device)
    for start in range(0, len(ids), size):
        cut = slice(start, start + size)
        scores[cut] = of_targets(outputs[cut], ids[cut])
    return scores.cpu().numpy()


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
