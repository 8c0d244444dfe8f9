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
"""Rows up to which a step by the plain cell beats the layer's kernel on a CPU."""


def advance_one(network: Network, tokens: Tensor, hidden: Hidden) -> Hidden:
    """Consume one token a row.

    Args:
        network: in evaluation mode.
        tokens: ids [B].
        hidden: the state; it is not changed.

    Returns:
        The next state, of the same shapes.
    """
    if tokens.is_cuda or (tokens.shape[0] > PLAIN_CELL_ROWS and not network.accepts_any_shape):
        return advance_many(network, tokens[None], hidden)[1]
    return network.step(tokens, hidden)


def advance_many(network: Network, tokens: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
    """Consume T tokens a row.

    Args:
        network: in evaluation mode.
        tokens: ids [T, B]; the caller keeps the number of different T small.
        hidden: the state; it is not changed.

    Returns:
        The body's outputs [T, B, W] and the next state.
    """
    hidden = tuple(part.contiguous() for part in hidden)  # as cuDNN requires
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
    """Consume the first lengths[b] tokens of each row b.

    Args:
        network: in evaluation mode.
        tokens: ids [T, B].
        lengths: [B], on the CPU, descending, each in [1, T].
        hidden: the state; it is not changed.

    Returns:
        The next state, of the same shapes.
    """
    after = tuple(part.clone() for part in hidden)
    any_width = tokens.is_cuda or network.accepts_any_shape
    for start, end, alive in ragged_segments(lengths.numpy(), any_width=any_width, most=len(tokens)):
        before = tuple(part[:, :alive] for part in after)
        segment = tokens[start:end, :alive]
        hidden_after = (
            advance_one(network, segment[0], before)
            if end - start == 1
            else advance_many(network, segment, before)[1]
        )
        for part, changed in zip(after, hidden_after, strict=True):
            part[:, :alive] = changed
    return after


def ragged_segments(lengths: TokenIds, *, any_width: bool, most: int) -> Iterator[tuple[int, int, int]]:
    """Segments of rows, within which no row ends.

    Args:
        lengths: of the rows [B], descending, each in [1, T].
        any_width: False for few different widths, powers of two.
        most: tokens of a row in one segment.

    Yields:
        The first column, the one after the last, and the number of rows, from the first on, that have it.
    """
    start = 0
    for end in np.unique(lengths).tolist():  # ascending: rows stop at each end
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
"""Sequences of a group: few, so that their lengths are similar."""

SEGMENT_STEPS = 128
"""Tokens of each sequence per pass of the body and the output layer."""

MAX_LOGITS = 1 << 21
"""Logits in memory at once (8 MiB): the output layer's matrix product stays in a CPU's cache."""

MAX_CHOICE_LOGITS = 1 << 22
"""`MAX_LOGITS` for several candidates after one text, where a product of more rows is faster."""

GROUP_ROWS_ON_CUDA = 256
MAX_LOGITS_ON_CUDA = 1 << 27
"""`MAX_LOGITS` on a CUDA device, which is faster with larger products (512 MiB of logits)."""

_STEPS_MULTIPLE = 8  # segments are padded to it: each new length costs a compiled kernel

_MAX_POSITIONS = 1024
"""Tokens of all rows per pass, if the network accepts any shape: rows drop out soon after their ends."""

_MAX_DISTRIBUTIONS = 8192
"""Distributions per call of an output layer that streams logits: it reads its weights less often."""


def score_batch(
    network: Network, state: NeuralState, tokens: TokenIds, lengths: TokenIds, *, normalised: bool = True
) -> FloatArray:
    """Natural-log probabilities [B, T] of given tokens, 0 past a row's length.

    Args:
        network: in evaluation mode.
        state: before the tokens, B rows.
        tokens: ids [B, T].
        lengths: [B], each in [0, T].
        normalised: False for logits instead.
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
    """Inputs of the output layer before each of given tokens [B, T, E], 0 past a row's length.

    Args:
        network: in evaluation mode.
        state: before the tokens, B rows.
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
    """Score given tokens and return the state after them, in one pass.

    Args:
        network: in evaluation mode.
        state: before the tokens, B rows.
        tokens: ids [B, T].
        lengths: [B], each in [0, T].
        scores: [B, T]; natural-log probabilities are written into it.
        features: [B, T, E]; if given, the output layer's input before each token is written into it.
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
        outputs: of the body after each text [N, W].
        rows: text of each id, never falling [C].
        ids: candidates for the next token [C].
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
        log_probs = network.choice_log_probs(outputs[start : start + size], here, chosen)
        scores[cut] = log_probs.cpu().numpy()
    return scores


def _rows_at_once(state: NeuralState) -> int:
    return GROUP_ROWS_ON_CUDA if state.top.is_cuda else GROUP_ROWS


def _length_groups(lengths: TokenIds, most: int) -> Iterator[TokenIds]:
    """Groups of at most `most` non-empty rows, longest first, so that neighbours end together."""
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
    """Write scores [B, T] and features [B, T, E] of non-empty rows, sorted by falling length."""
    device = state.top.device
    tokens, lengths = tokens[rows, : lengths[rows[0]]], lengths[rows]
    batch, width = tokens.shape
    padding = 0 if network.accepts_any_shape else -width % _STEPS_MULTIPLE
    padded = np.full((batch, width + padding), EOS, dtype=np.int64)
    is_given = np.arange(width) < lengths[:, None]
    padded[:, :width][is_given] = tokens[is_given]  # entries past a row's length may be invalid ids
    hidden, last = state.hidden, state.top
    steps = _steps_at_once(network, batch)
    for start in range(0, width, steps):
        alive = int(np.count_nonzero(lengths > start))
        segment = torch.as_tensor(padded[:alive, start : start + steps].T.copy(), device=device)  # [t, alive]
        outputs, hidden = advance_many(network, segment, tuple(part[:, :alive] for part in hidden))
        # contexts [t, alive, W]: the last output before the segment, then all outputs but the last
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
    """The state after non-empty rows, sorted by falling length; also writes their scores and features."""
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
        contexts.append(torch.cat([before[0], outputs]).flatten(0, 1))  # copied before they are overwritten
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
    """The outputs after all but the last of ids [T, B], and the state after the last."""
    if len(ids) == 1:
        return hidden[0][:0], advance_one(network, ids[0], hidden)
    outputs, after = advance_many(network, ids, hidden)
    return outputs[:-1], after


def _write_scores(
    network: Network,
    contexts: Tensor,
    ids: Tensor,
    positions: tuple[TokenIds, TokenIds],
    scores: FloatArray,
    features: FloatArray | None,
) -> None:
    """Write scores and features of ids [N] after outputs [N, W] at positions [N] of [B, T]."""
    if features is not None:
        features[positions] = network.features(contexts).cpu().numpy()
    scores[positions] = _score_positions(network, contexts, ids, normalised=True)


def _prefill_group(network: Network, state: NeuralState, tokens: TokenIds, lengths: TokenIds) -> NeuralState:
    """The state after non-empty rows, sorted by falling length."""
    hidden = tuple(part.clone() for part in state.hidden)
    for start in range(0, int(lengths[0]), SEGMENT_STEPS):
        alive = int(np.count_nonzero(lengths > start))
        ids = tokens[:alive, start : start + SEGMENT_STEPS].T.astype(np.int64)
        segment = torch.as_tensor(ids, device=state.top.device)
        before = tuple(part[:, :alive] for part in hidden)
        if lengths[alive - 1] >= start + SEGMENT_STEPS:  # no row ends in the segment
            after = advance_many(network, segment, before)[1]
        else:
            left = torch.as_tensor(np.minimum(lengths[:alive] - start, SEGMENT_STEPS))
            after = advance_ragged(network, segment, left, before)
        for part, changed in zip(hidden, after, strict=True):
            part[:, :alive] = changed
    return NeuralState(hidden)


def _score_positions(network: Network, outputs: Tensor, ids: Tensor, *, normalised: bool) -> FloatArray:
    """Log-probabilities or logits [N] of ids [N], each after the text of an output [N, W]."""
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
"""Sequences of a group in int8: few, so that their lengths are similar."""

INT8_SEGMENT_STEPS = 64
"""Tokens of each sequence per pass of the body and the output layer, in int8."""

INT8_TOKENS_PER_THREAD = 512
"""Tokens at least for which a thread pays."""

INT8_ROWS_PER_THREAD = 8
"""Rows at least for which a thread pays, as each thread reads all weights."""


class Want(NamedTuple):
    """Results to write while sequences are read.

    Attributes:
        scores: natural-log probabilities of the tokens [B, T].
        normalised: False for logits instead.
        features: inputs of the output layer before each token [B, T, E].
    """

    scores: FloatArray | None = None
    normalised: bool = True
    features: FloatArray | None = None


class _Int8Sequences(NamedTuple):
    tokens: TokenIds
    lengths: TokenIds
    hidden: HiddenArrays
    """States of all rows; written over."""


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
        network: in int8.
        state: before the tokens, B rows.
        tokens: ids [B, T].
        lengths: [B], each in [0, T].
        wanted: arrays to write as well.
        threads: number at most.
    """
    sequences = _Int8Sequences(tokens, lengths, tuple(part.copy() for part in state.hidden))
    num_shares = max(
        1,
        min(
            threads,
            int(lengths.sum()) // INT8_TOKENS_PER_THREAD,
            int(np.count_nonzero(lengths)) // INT8_ROWS_PER_THREAD,
        ),
    )
    groups = list(_int8_length_groups(lengths, num_shares))

    def read(assigned: Sequence[TokenIds]) -> None:
        for group in assigned:
            _read_int8_group(network, sequences, group, wanted)

    run_parts(read, [groups[number::num_shares] for number in range(num_shares)])
    return Int8State(sequences.hidden)


def _int8_length_groups(lengths: TokenIds, num_shares: int) -> Iterator[TokenIds]:
    """Groups of at most `INT8_GROUP_ROWS` non-empty rows, longest first, so that neighbours end together."""
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    size = max(1, min(INT8_GROUP_ROWS, -(-len(order) // num_shares)))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _read_int8_group(network: Int8Network, sequences: _Int8Sequences, group: TokenIds, wanted: Want) -> None:
    """Read the rows of a group to their ends."""
    lengths = sequences.lengths[group]
    for start in range(0, int(lengths[0]), INT8_SEGMENT_STEPS):
        rows = group[: np.count_nonzero(lengths > start)]
        cut = slice(start, min(start + INT8_SEGMENT_STEPS, int(lengths[0])))
        here = tuple(part[:, rows] for part in sequences.hidden)
        is_read = np.arange(cut.start, cut.stop)[:, None] < sequences.lengths[rows]
        segment = np.where(is_read, sequences.tokens[rows, cut].T, 0)
        outputs = network.read(segment, np.count_nonzero(is_read, axis=1), here)
        for part, changed in zip(sequences.hidden, outputs.hidden, strict=True):
            part[:, rows] = changed
        step, row = np.nonzero(is_read)
        if wanted.scores is not None:
            before = take_rows(outputs.rows, step * len(rows) + row)
            predict = network.target_log_probs if wanted.normalised else network.target_logits
            wanted.scores[rows[row], start + step] = predict(before, segment[step, row])
        if wanted.features is not None:
            wanted.features[rows[row], start + step] = network.features(outputs.before[step, row])
