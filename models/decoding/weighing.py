"""Drawing tokens by the weights of blocks of them, compiled: where no rule looks at a whole distribution.

The block is drawn first, then the token within it. Only the first block, which the control tokens are in,
is weighed again for what a row's rules make impossible.
"""

from typing import Any

import numba
import numpy as np
from numba import types

from models.decoding.batch import SequenceBatch
from models.decoding.choosing import ChosenTokens
from models.decoding.rows import END_AFTER, TEMPERATURE
from models.neural.elementary import exp
from models.protocol import BLOCK_TOKENS, BlockSampler
from models.vocabulary import EOS

UNDETERMINED = -1
"""Chosen where too little weight is left to draw by: nearly all of it was on what may not come."""

_MIN_SHARE = 1e-12
"""Of the weight of all tokens: with less, the rest may be too little for single precision."""

_NEGLIGIBLE = np.float32(-87)
_NEGLIGIBLE_SUM = 1e-30  # weights of impossible tokens may sum to less than it, but not to 0
_ONE = np.float32(1)
_FLOATS, _TABLE = types.float32[::1], types.float32[:, ::1]
_DOUBLES, _INTEGERS, _FLAGS = types.float64[::1], types.int64[::1], types.boolean[::1]


def sample_by_blocks(model: BlockSampler[Any], state: Any, batch: SequenceBatch) -> ChosenTokens:
    """A token a row, drawn at its temperature; of rows that are `RuleTable.plain`.

    Args:
        model: weighs blocks of tokens.
        state: its own, R rows.
        batch: the rows.

    Returns:
        `UNDETERMINED` for a row that must be drawn otherwise.
    """
    rules, everyone = batch.table.numbers, np.arange(len(batch))
    temperatures = rules[:, TEMPERATURE].astype(np.float32)
    weighed, scales = model.block_sums(state, temperatures), _ONE / temperatures
    endless = batch.lengths < rules[:, END_AFTER]
    blocks, targets = np.zeros(len(batch), np.int64), np.empty(len(batch))
    _draw_blocks(
        weighed.sums,
        weighed.first,
        weighed.highest,
        scales,
        endless,
        batch.uniform_numbers(),
        blocks,
        targets,
    )
    logits = model.logits(weighed, everyone, blocks)
    places = np.empty(len(batch), np.int64)
    _draw_in_blocks(logits, weighed.highest, scales, endless, blocks, targets, places)
    log_probs = logits[everyone, places] - weighed.log_sums
    tokens = np.where(places < 0, UNDETERMINED, blocks * BLOCK_TOKENS + places)
    return ChosenTokens(tokens, log_probs)


@numba.njit(nogil=True, inline="always")
def _token_weight(logit: Any, highest: Any, scale: Any) -> Any:
    score = (logit - highest) * scale
    return exp(score) if score > _NEGLIGIBLE else np.float32(0)


@numba.njit(nogil=True, inline="always")
def _is_possible(token: Any, endless: Any) -> Any:
    return token > EOS or (token == EOS and not endless)


@numba.njit(
    types.void(_TABLE, _TABLE, _FLOATS, _FLOATS, _FLAGS, _DOUBLES, _INTEGERS, _DOUBLES),
    nogil=True,
    cache=True,
)
def _draw_blocks(
    sums: Any, first: Any, highest: Any, scales: Any, endless: Any, draws: Any, blocks: Any, targets: Any
) -> None:
    """Write the block [R] in which each row's token lies, and what is left there of its share of the weight [R].

    It is not a number where too little weight is left, and the block the first.
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


@numba.njit(
    types.void(_TABLE, _FLOATS, _FLOATS, _FLAGS, _INTEGERS, _DOUBLES, _INTEGERS), nogil=True, cache=True
)
def _draw_in_blocks(
    logits: Any, highest: Any, scales: Any, endless: Any, blocks: Any, targets: Any, places: Any
) -> None:
    """Write the place of each row's token within its block [R]; -1 where it is undetermined."""
    for row in range(len(places)):
        places[row], running = -1, 0.0
        if np.isnan(targets[row]):
            continue
        for place in range(BLOCK_TOKENS):
            weight = _token_weight(logits[row, place], highest[row], scales[row])
            if weight > 0 and _is_possible(blocks[row] * BLOCK_TOKENS + place, endless[row]):
                places[row] = place  # the last that is possible, should rounding carry the target past it
                running += weight
                if running > targets[row]:
                    break
