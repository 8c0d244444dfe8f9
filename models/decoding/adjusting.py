"""Mask, bias and penalties, compiled: what changes a few entries of a row."""

from typing import Any

import numba
import numpy as np

from models.decoding.rows import END_AFTER, FREQUENCY, PRESENCE, REPETITION
from models.vocabulary import BOS, EOS, UNK

_IMPOSSIBLE = np.float32(-np.inf)
_MAX_SCORE = np.float32(3e38)
"""By penalties next to nothing a score would become infinite, and no weight could be told from nothing beside it."""


@numba.njit(nogil=True)
def adjust_scores(scores: Any, row: Any, rows: Any, counts: Any) -> None:
    """Turn a row of log-probabilities into scores, in place.

    The work grows with the row's biases and bans and the tokens that penalties look at, not with V.

    Args:
        scores: [V] or longer, float32.
        row: its number.
        rows: `Rows`.
        counts: [V], all 0; so they are left.
    """
    scores[UNK] = scores[BOS] = _IMPOSSIBLE
    if rows.lengths[row] < rows.rules[row, END_AFTER]:
        scores[EOS] = _IMPOSSIBLE
    for place in range(rows.banned_spans[row, 0], rows.banned_spans[row, 1]):
        scores[rows.banned_ids[place]] = _IMPOSSIBLE
    for place in range(rows.bias_spans[row, 0], rows.bias_spans[row, 1]):
        scores[rows.bias_ids[place]] += rows.bias_values[place]
    repetition = rows.rules[row, REPETITION]
    presence, frequency = rows.rules[row, PRESENCE], rows.rules[row, FREQUENCY]
    if repetition != 1 or presence != 0 or frequency != 0:
        _apply_penalties(scores, row, rows, counts)


@numba.njit(nogil=True)
def _apply_penalties(scores: Any, row: Any, rows: Any, counts: Any) -> None:
    repetition = rows.rules[row, REPETITION]
    presence, frequency = rows.rules[row, PRESENCE], rows.rules[row, FREQUENCY]
    history, length = rows.history, rows.lengths[row]
    for place in range(length):
        counts[history[row, place]] += 1
    if repetition != 1:
        for place in range(rows.prompt_spans[row, 0], rows.prompt_spans[row, 1]):
            token = rows.prompt_ids[place]
            if counts[token] == 0:
                scores[token] = penalise_repetition(scores[token], repetition)
    for place in range(length):
        token = history[row, place]
        if counts[token]:  # its first place; the count is cleared there
            score = penalise_repetition(scores[token], repetition)
            scores[token] = score - frequency * counts[token] - presence
            counts[token] = 0


@numba.njit(nogil=True, inline="always")
def penalise_repetition(score: Any, penalty: Any) -> Any:
    """The score of a token seen before."""
    return min(score / penalty, _MAX_SCORE) if score > 0 else score * penalty
