"""Choosing the next token of each row, by as little of its distribution as its rules allow."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds, to_numpy
from models.decoding.batch import SequenceBatch
from models.decoding.choosing import ChosenTokens, choose_tokens
from models.decoding.weighing import UNDETERMINED, sample_by_blocks
from models.protocol import BlockSampler, LanguageModel, supports


class TokenChoices(NamedTuple):
    """What comes next.

    Attributes:
        chosen: a token a row.
        full_rows: rows whose whole distributions were computed, ascending [F].
        log_probs: these [F, V].
    """

    chosen: ChosenTokens
    full_rows: TokenIds
    log_probs: FloatArray


_NO_ROWS, _NO_LOG_PROBS = np.zeros(0, np.int64), np.zeros((0, 0), np.float32)


def choose_next_tokens(
    model: LanguageModel[Any], state: Any, batch: SequenceBatch, *, in_full: npt.NDArray[np.bool_]
) -> TokenChoices:
    """Choose a token for each of R rows. What a row is given depends on that row alone.

    Args:
        model: any; one that weighs blocks of tokens spares most of the work.
        state: its own, R rows.
        batch: the rows; theirs are the rules.
        in_full: which of them must have their whole distributions computed [R].
    """
    if not supports(model, BlockSampler):
        return _choose_from_distributions(model, state, batch)
    by_weight = batch.table.unfiltered & ~in_full
    if not by_weight.any():
        return _choose_from_distributions(model, state, batch)
    if by_weight.all():
        chosen = sample_by_blocks(model, state, batch)
    else:
        rows = np.flatnonzero(by_weight)
        some = sample_by_blocks(model, state.select(rows), batch.select(rows))
        chosen = ChosenTokens(np.full(len(batch), UNDETERMINED), np.empty(len(batch), np.float32))
        _scatter(chosen, rows, some)
    rest = np.flatnonzero(chosen.tokens == UNDETERMINED)
    if not len(rest):
        return TokenChoices(chosen, _NO_ROWS, _NO_LOG_PROBS)
    log_probs, part = to_numpy(model.next_log_probs(state.select(rest))), batch.select(rest)
    _scatter(chosen, rest, choose_tokens(log_probs, part.rows(), part.uniform_numbers()))
    return TokenChoices(chosen, rest, log_probs)


def _choose_from_distributions(model: LanguageModel[Any], state: Any, batch: SequenceBatch) -> TokenChoices:
    log_probs = to_numpy(model.next_log_probs(state))
    return TokenChoices(
        choose_tokens(log_probs, batch.rows(), batch.uniform_numbers()), np.arange(len(batch)), log_probs
    )


def _scatter(chosen: ChosenTokens, rows: TokenIds, some: ChosenTokens) -> None:
    chosen.tokens[rows], chosen.log_probs[rows] = some
