"""Mask, bias and penalties, compiled: what changes a few entries of a row."""

from typing import Any

import numba

from models.decoding.rows import FREQUENCY, PRESENCE, REPETITION


@numba.njit(nogil=True)
def adjust(scores: Any, row: Any, rows: Any, counts: Any) -> None:
    """Turn a row of log-probabilities into scores, in place.

    The work grows with the edits of the row and the tokens that penalties look at, not with V.

    Args:
        scores: [V] or longer, float32.
        row: its number.
        rows: `Rows`.
        counts: [V], all 0; so they are left.
    """
    for edit in range(rows.edit_spans[row, 0], rows.edit_spans[row, 1]):
        scores[rows.edit_ids[edit]] += rows.edit_values[edit]
    repetition = rows.rules[row, REPETITION]
    presence, frequency = rows.rules[row, PRESENCE], rows.rules[row, FREQUENCY]
    if repetition == 1 and presence == 0 and frequency == 0:
        return
    history, length = rows.history, rows.lengths[row]
    for place in range(length):
        counts[history[row, place]] += 1
    if repetition != 1:
        for place in range(rows.prompt_spans[row, 0], rows.prompt_spans[row, 1]):
            token = rows.prompt_ids[place]
            if counts[token] == 0:
                scores[token] = repeated(scores[token], repetition)
    for place in range(length):
        token = history[row, place]
        if counts[token]:  # its first place; the count is cleared there
            score = repeated(scores[token], repetition)
            scores[token] = score - frequency * counts[token] - presence
            counts[token] = 0


@numba.njit(nogil=True, inline="always")
def repeated(score: Any, penalty: Any) -> Any:
    """The score of a token seen before."""
    return score / penalty if score > 0 else score * penalty
