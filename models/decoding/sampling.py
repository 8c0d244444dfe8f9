"""Compiled choice of each row's next token, from as little of its distribution as its rules need.

`choose_tokens` adjusts a row's full distribution (mask, bias, penalties), truncates it and draws from
it. Rows whose rules need no full distribution are drawn by `sample_by_blocks`: first a block
of 64 tokens by its sum, then the token within the block.

A row's result depends only on that row: sums run over fixed blocks in a fixed order. Exponentials
and sums within a block are in single precision, with a relative error below 3e-7.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import Bools, Float64s, FloatArray, TokenIds, to_numpy
from models.decoding.batch import SequenceBatch, uniform_numbers
from models.decoding.rules import (
    END_AFTER,
    FREQUENCY,
    MIN_P,
    PRESENCE,
    REPETITION,
    SUM_BLOCK,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    TYPICAL_P,
    KernelBuffers,
    KernelRows,
    buffers_for,
)
from models.decoding.truncation import truncate
from models.kernels.compilation import kernel, tuple_type
from models.kernels.math import exp, greater, sum_lanes
from models.language_model import BLOCK_TOKENS, BOS, EOS, UNK, BlockSampler, LanguageModel, supports

_IMPOSSIBLE = np.float32(-np.inf)
_MAX_SCORE = np.float32(3e38)
"""Limit of scores under penalties; an infinite one would make other weights 0."""

_LANES = 64
_LOWEST = np.float32(-np.inf)
_ZERO = np.float32(0)
_NEGLIGIBLE = np.float32(-87)  # exp(-87) is negligible beside exp(0) in single precision
_MIN_TEMPERATURE = 1e-30

_FLOATS, _TABLE = types.float32[::1], types.float32[:, ::1]
_DOUBLES, _INTEGERS, _FLAGS = types.float64[::1], types.int64[::1], types.boolean[::1]
_IDS, _SPANS = types.int32[::1], types.int64[:, ::1]

ROWS_TYPE = tuple_type(
    KernelRows, types.float64[:, ::1], _IDS, _FLOATS, _SPANS, _IDS, _SPANS, types.int32[:, ::1], _INTEGERS
)
BUFFERS_TYPE = tuple_type(KernelBuffers, *[_FLOATS] * 3, *[_IDS] * 3, *[_DOUBLES] * 2)
LOG_PROBS_TYPE = types.Array(types.float32, 2, "C", readonly=True)

UNDETERMINED = -1
"""Result if too little weight is possible to draw from."""

_MIN_SHARE = 1e-12
"""Minimum share of possible tokens in the weight: single precision is too coarse for less."""
_NEGLIGIBLE_SUM = 1e-30  # rounding error of a block sum whose tokens are all impossible
_ONE = np.float32(1)

_NO_LOG_PROBS = np.zeros((0, 0), np.float32)


@numba.njit(nogil=True)
def adjust_scores(scores: Any, row: Any, rows: Any, counts: Any) -> None:
    """Convert a row of log-probabilities to scores, in place.

    The cost depends on the row's biases and penalised tokens, not on V.

    Args:
        scores: [V] or longer, float32.
        row: index of the row.
        rows: `KernelRows`.
        counts: [V], all 0, and 0 again afterwards.
    """
    scores[UNK] = scores[BOS] = _IMPOSSIBLE
    if rows.lengths[row] < rows.rules[row, END_AFTER]:
        scores[EOS] = _IMPOSSIBLE
    for index in range(rows.bias_spans[row, 0], rows.bias_spans[row, 1]):
        scores[rows.bias_ids[index]] += rows.bias_values[index]
    repetition = rows.rules[row, REPETITION]
    presence, frequency = rows.rules[row, PRESENCE], rows.rules[row, FREQUENCY]
    if repetition == 1 and presence == 0 and frequency == 0:
        return
    history, length = rows.history, rows.lengths[row]
    for index in range(length):
        counts[history[row, index]] += 1
    if repetition != 1:
        for index in range(rows.prompt_spans[row, 0], rows.prompt_spans[row, 1]):
            token = rows.prompt_ids[index]
            if counts[token] == 0:
                scores[token] = penalise_repetition(scores[token], repetition)
    for index in range(length):
        token = history[row, index]
        if counts[token]:  # only at its first occurrence, which clears the count
            score = penalise_repetition(scores[token], repetition)
            scores[token] = score - frequency * counts[token] - presence
            counts[token] = 0


@numba.njit(nogil=True, inline="always")
def penalise_repetition(score: Any, penalty: Any) -> Any:
    """Apply the repetition penalty to the score of a seen token."""
    return min(score / penalty, _MAX_SCORE) if score > 0 else score * penalty


class ChosenTokens(NamedTuple):
    """One chosen token per row.

    Attributes:
        tokens: ids [R].
        log_probs: the model's unmodified log-probabilities of the tokens [R].
    """

    tokens: TokenIds
    log_probs: FloatArray


def choose_tokens(log_probs: FloatArray, rows: KernelRows, draws: Float64s) -> ChosenTokens:
    """Choose one token per row: the most probable one at temperature 0, else a random one.

    Among equally probable tokens the smallest id wins; `</s>` if no token is possible.

    Args:
        log_probs: the model's log-probabilities [R, V]; unchanged.
        rows: rules of the rows.
        draws: random numbers in [0, 1) [R]; unused at temperature 0.
    """
    chosen = ChosenTokens(np.empty(len(log_probs), np.int64), np.empty(len(log_probs), np.float32))
    _choose_rows(np.ascontiguousarray(log_probs), rows, draws, buffers_for(log_probs.shape[1]), *chosen)
    return chosen


@numba.njit(nogil=True)
def _highest(scores: Any) -> Any:
    """Return the maximum of scores; their number is a multiple of the block size."""
    lanes = np.full(_LANES, _LOWEST)
    for first in range(0, len(scores), _LANES):
        for lane in range(_LANES):
            lanes[lane] = greater(lanes[lane], scores[first + lane])
    return lanes.max()


@numba.njit(nogil=True)
def _write_weights(scores: Any, peak: Any, scale: Any, weights: Any, sums: Any) -> None:
    """Write exp((score − peak) · scale) of all scores, and the sum of each block."""
    for block in range(len(sums)):
        given = scores[block * SUM_BLOCK : (block + 1) * SUM_BLOCK]
        written = weights[block * SUM_BLOCK : (block + 1) * SUM_BLOCK]
        for index in range(SUM_BLOCK):
            score = (given[index] - peak) * scale
            weight = exp(score)  # before the branch, so the loop can be vectorised
            written[index] = weight if score > _NEGLIGIBLE else _ZERO
        sums[block] = sum_lanes(written)


@numba.njit(nogil=True)
def _write_block_sums(weights: Any, count: Any, sums: Any) -> None:
    """Write the sum of each block of the first `count` weights; clear the rest of the last."""
    blocks = (count + SUM_BLOCK - 1) // SUM_BLOCK
    weights[count : blocks * SUM_BLOCK] = 0
    for block in range(blocks):
        sums[block] = sum_lanes(weights[block * SUM_BLOCK : (block + 1) * SUM_BLOCK])


@numba.njit(nogil=True)
def _draw_index(weights: Any, count: Any, sums: Any, draw: Any) -> Any:
    """Return the first index below `count` with a cumulative weight above the share `draw`."""
    blocks = (count + SUM_BLOCK - 1) // SUM_BLOCK
    total = 0.0
    for block in range(blocks):
        total += sums[block]
    target, running, block = draw * total, 0.0, 0
    while block < blocks - 1 and running + sums[block] <= target:
        running += sums[block]
        block += 1
    last = 0
    for index in range(block * SUM_BLOCK, min((block + 1) * SUM_BLOCK, count)):
        if weights[index] > 0:
            last = index
            running += weights[index]
            if running > target:
                return index
    while weights[last] == 0:  # rounding moved the target past the last possible token
        last = block * SUM_BLOCK - 1 if last == 0 else last - 1
    return last


@numba.njit(nogil=True)
def _choose_row(scores: Any, row: Any, rules: Any, draw: Any, buffers: Any, width: Any) -> Any:
    """Choose the token of one row from its scores, which are overwritten."""
    peak = _highest(scores)
    if not peak > _LOWEST:  # no token is possible, or all scores are NaN
        return EOS
    if rules[row, TEMPERATURE] == 0:
        best = 0
        while scores[best] != peak:
            best += 1
        return best
    scale = np.float32(1 / max(rules[row, TEMPERATURE], _MIN_TEMPERATURE))
    _write_weights(scores, peak, scale, buffers.weights, buffers.sums)
    keeps_all = rules[row, TOP_K] <= 0 and rules[row, TYPICAL_P] >= 1
    if keeps_all and rules[row, TOP_P] >= 1 and rules[row, MIN_P] <= 0:
        return _draw_index(buffers.weights, width, buffers.sums, draw)
    for index in range(width):
        scores[index] = (scores[index] - peak) * scale
    count = truncate(row, rules, buffers, width)
    _write_block_sums(buffers.weights, count, buffers.sums)
    return buffers.ids[_draw_index(buffers.weights, count, buffers.sums, draw)]


@kernel(types.void(LOG_PROBS_TYPE, ROWS_TYPE, _DOUBLES, BUFFERS_TYPE, _INTEGERS, _FLOATS))
def _choose_rows(log_probs: Any, rows: Any, draws: Any, buffers: Any, tokens: Any, own: Any) -> None:
    scores, width = buffers.scores, log_probs.shape[1]
    for row in range(len(tokens)):
        for token in range(width):  # faster than copying a slice
            scores[token] = log_probs[row, token]
        adjust_scores(scores, row, rows, buffers.counts)
        tokens[row] = _choose_row(scores, row, rows.rules, draws[row], buffers, width)
        own[row] = log_probs[row, tokens[row]]


def sample_by_blocks(model: BlockSampler, state: Any, batch: SequenceBatch) -> ChosenTokens:
    """Draw a token per `RuleTable.unfiltered` row at its temperature.

    Args:
        model: a model with block sums.
        state: its state, R rows.
        batch: the rows.

    Returns:
        The tokens; `UNDETERMINED` for rows that need the full distribution.
    """
    rules, everyone = batch.table.numbers, np.arange(len(batch))
    temperatures = rules[:, TEMPERATURE].astype(np.float32)
    sums, scales = model.block_sums(state, temperatures), _ONE / temperatures
    endless = batch.lengths < rules[:, END_AFTER]
    blocks, targets = np.zeros(len(batch), np.int64), np.empty(len(batch))
    draws = uniform_numbers(batch.seeds, batch.lengths)
    _draw_blocks(sums.sums, sums.first, sums.highest, scales, endless, draws, blocks, targets)
    logits = model.logits(sums, everyone, blocks)
    indices = np.empty(len(batch), np.int64)
    _draw_in_blocks(logits, sums.highest, scales, endless, blocks, targets, indices)
    log_probs = logits[everyone, indices] - sums.log_sums
    tokens = np.where(indices < 0, UNDETERMINED, blocks * BLOCK_TOKENS + indices)
    return ChosenTokens(tokens, log_probs)


@numba.njit(nogil=True, inline="always")
def _token_weight(logit: Any, highest: Any, scale: Any) -> Any:
    score = (logit - highest) * scale
    return exp(score) if score > _NEGLIGIBLE else np.float32(0)


@numba.njit(nogil=True, inline="always")
def _is_possible(token: Any, endless: Any) -> Any:
    return token > EOS or (token == EOS and not endless)


@kernel(types.void(_TABLE, _TABLE, _FLOATS, _FLOATS, _FLAGS, _DOUBLES, _INTEGERS, _DOUBLES))
def _draw_blocks(
    sums: Any, first: Any, highest: Any, scales: Any, endless: Any, draws: Any, blocks: Any, targets: Any
) -> None:
    """Write the block of each row's token [R], and the target of cumulative weight in it [R].

    If too little weight is possible, the target is NaN and the block is 0.
    """
    for row in range(len(blocks)):
        in_first = 0.0
        for token in range(BLOCK_TOKENS):
            if _is_possible(token, endless[row]):
                in_first += _token_weight(first[row, token], highest[row], scales[row])
        total = in_first
        for block in range(1, sums.shape[1]):
            total += sums[row, block]
        target, running, before, found = draws[row] * total, 0.0, 0.0, 0
        for block in range(sums.shape[1]):
            weight = in_first if block == 0 else np.float64(sums[row, block])
            if weight > _NEGLIGIBLE_SUM:
                found, before = block, running
                running += weight
                if running > target:
                    break
        blocks[row], targets[row] = found, target - before
        if total < _MIN_SHARE:
            blocks[row], targets[row] = 0, np.nan


@kernel(types.void(_TABLE, _FLOATS, _FLOATS, _FLAGS, _INTEGERS, _DOUBLES, _INTEGERS))
def _draw_in_blocks(
    logits: Any, highest: Any, scales: Any, endless: Any, blocks: Any, targets: Any, indices: Any
) -> None:
    """Write the index of each row's token within its block [R]; -1 if undetermined."""
    for row in range(len(indices)):
        indices[row], running = -1, 0.0
        if np.isnan(targets[row]):
            continue
        for index in range(BLOCK_TOKENS):
            weight = _token_weight(logits[row, index], highest[row], scales[row])
            if weight > 0 and _is_possible(blocks[row] * BLOCK_TOKENS + index, endless[row]):
                # kept if rounding moves the target past the last possible token
                indices[row] = index
                running += weight
                if running > targets[row]:
                    break


class TokenChoices(NamedTuple):
    """Chosen next tokens.

    Attributes:
        chosen: one token per row.
        full_rows: rows whose full distributions were computed, ascending [F].
        log_probs: these distributions [F, V].
    """

    chosen: ChosenTokens
    full_rows: TokenIds
    log_probs: FloatArray


def choose_next_tokens(
    model: LanguageModel, state: Any, batch: SequenceBatch, *, in_full: Bools
) -> TokenChoices:
    """Choose a token for each of R rows, by that row only.

    Args:
        model: any model; block sums avoid most of the work.
        state: its state, R rows.
        batch: the rows with their rules.
        in_full: mask of the rows that need their full distributions [R].
    """
    chosen = ChosenTokens(np.full(len(batch), UNDETERMINED), np.empty(len(batch), np.float32))
    if supports(model, BlockSampler):
        rows = np.flatnonzero(batch.table.unfiltered & ~in_full)
        if len(rows):
            subset = sample_by_blocks(model, *_select_rows(state, batch, rows))
            chosen.tokens[rows], chosen.log_probs[rows] = subset
    rest = np.flatnonzero(chosen.tokens == UNDETERMINED)
    if not len(rest):
        return TokenChoices(chosen, rest, _NO_LOG_PROBS)
    state, part = _select_rows(state, batch, rest)
    log_probs = to_numpy(model.next_log_probs(state))
    subset = choose_tokens(log_probs, part.rows(), uniform_numbers(part.seeds, part.lengths))
    chosen.tokens[rest], chosen.log_probs[rest] = subset
    return TokenChoices(chosen, rest, log_probs)


def _select_rows(state: Any, batch: SequenceBatch, rows: TokenIds) -> tuple[Any, SequenceBatch]:
    """Select ascending rows of a state and a batch; selecting all copies nothing."""
    return (state, batch) if len(rows) == len(batch) else (state.select(rows), batch.select(rows))


@numba.njit(nogil=True)
def insert_sorted(values: Any, items: Any, value: Any, item: Any) -> None:
    """Insert a value above the last into descending values, after equal ones."""
    index = len(values) - 1
    while index > 0 and values[index - 1] < value:
        values[index], items[index] = values[index - 1], items[index - 1]
        index -= 1
    values[index], items[index] = value, item


@kernel(types.void(LOG_PROBS_TYPE, _SPANS, _TABLE))
def write_top_tokens(log_probs: Any, ids: Any, values: Any) -> None:
    """Write each row's largest log_probs [R, V], descending; equal ones by id.

    Args:
        log_probs: R rows.
        ids: output [R, k].
        values: output [R, k].
    """
    last = ids.shape[1] - 1
    for row in range(len(log_probs)):
        # insert the first k tokens always, so impossible ones are ranked too
        for token in range(last + 1):
            values[row, token] = np.float32(-np.inf)
            insert_sorted(values[row, : token + 1], ids[row, : token + 1], log_probs[row, token], token)
        least = values[row, last]
        for token in range(last + 1, log_probs.shape[1]):
            if log_probs[row, token] > least:
                insert_sorted(values[row], ids[row], log_probs[row, token], token)
                least = values[row, last]
