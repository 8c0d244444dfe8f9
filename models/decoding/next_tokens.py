"""Choosing the next token of each row, by as little of its distribution as its rules allow."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds, to_numpy
from models.decoding.batch import Batch
from models.decoding.choosing import Chosen, choose
from models.decoding.weighing import UNDETERMINED, draw_by_weight
from models.protocol import LanguageModel, Weigher, can


class Next(NamedTuple):
    """What comes next.

    Attributes:
        chosen: a token a row.
        full_rows: rows whose whole distributions were computed, ascending [F].
        log_probs: these [F, V].
    """

    chosen: Chosen
    full_rows: TokenIds
    log_probs: FloatArray


_NO_ROWS, _NO_LOG_PROBS = np.zeros(0, np.int64), np.zeros((0, 0), np.float32)


def next_tokens(
    model: LanguageModel[Any], state: Any, batch: Batch, *, in_full: npt.NDArray[np.bool_]
) -> Next:
    """Choose a token for each of R rows. What a row is given depends on that row alone.

    Args:
        model: any; one that weighs blocks of tokens spares most of the work.
        state: its own, R rows.
        batch: the rows; theirs are the rules.
        in_full: which of them must have their whole distributions computed [R].
    """
    if not can(model, Weigher):
        return _all_in_full(model, state, batch)
    by_weight = batch.table.unfiltered & ~in_full
    if not by_weight.any():
        return _all_in_full(model, state, batch)
    if by_weight.all():
        chosen = draw_by_weight(model, state, batch)
    else:
        rows = np.flatnonzero(by_weight)
        some = draw_by_weight(model, state.select(rows), batch.select(rows))
        chosen = Chosen(np.full(len(batch), UNDETERMINED), np.empty(len(batch), np.float32))
        _put(chosen, rows, some)
    rest = np.flatnonzero(chosen.tokens == UNDETERMINED)
    if not len(rest):
        return Next(chosen, _NO_ROWS, _NO_LOG_PROBS)
    log_probs, part = to_numpy(model.next_log_probs(state.select(rest))), batch.select(rest)
    _put(chosen, rest, choose(log_probs, part.rows(), part.uniform_numbers()))
    return Next(chosen, rest, log_probs)


def _all_in_full(model: LanguageModel[Any], state: Any, batch: Batch) -> Next:
    log_probs = to_numpy(model.next_log_probs(state))
    return Next(choose(log_probs, batch.rows(), batch.uniform_numbers()), np.arange(len(batch)), log_probs)


def _put(chosen: Chosen, rows: TokenIds, some: Chosen) -> None:
    chosen.tokens[rows], chosen.log_probs[rows] = some
