"""From log-probabilities to what people report; scoring of ragged batches with any model.

Log-probabilities are natural logarithms. A probability of zero is minus infinity inside,
and `LOG_ZERO` where JSON is written.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds, to_numpy
from models.protocol import (
    ChoiceScorer,
    LanguageModel,
    Prefiller,
    ReadScores,
    SequenceReader,
    SequenceScorer,
    supports,
)
from models.vocabulary import EOS

LOG_ZERO = -9999.0
"""What stands for the logarithm of zero in JSON."""


def finite_logprob(logprob: float) -> float:
    """The log-probability as JSON can carry it: `LOG_ZERO` for minus infinity."""
    return LOG_ZERO if logprob == -math.inf else float(logprob)


def perplexity(logprob: float, count: int) -> float | None:
    """exp(−logprob / count); None where nothing was counted or a probability was zero."""
    if count == 0 or logprob == -math.inf:
        return None
    exponent = -logprob / count
    return math.exp(exponent) if exponent < 700 else None  # the largest double is e^709


def bits_per_unit(logprob: float, count: int) -> float | None:
    """−logprob in bits, per `count` bytes or words; None where nothing was counted or p was zero."""
    if count == 0 or logprob == -math.inf:
        return None
    return -logprob / math.log(2) / count


def entropy_bits(log_probs: FloatArray) -> npt.NDArray[np.float64]:
    """Shannon entropy in bits of each row of [B, V] natural-log probabilities, as [B]."""
    p = np.exp(log_probs, dtype=np.float64)
    terms = np.where(p > 0, p * np.where(np.isfinite(log_probs), log_probs, 0.0), 0.0)
    answer: npt.NDArray[np.float64] = -terms.sum(axis=-1) / math.log(2)
    return answer


def count_words(text: str) -> int:
    """Words as perplexity per word counts them, whatever the tokenizer: runs between white space."""
    return len(text.split())


def pad_sequences(sequences: Sequence[Sequence[int] | TokenIds]) -> tuple[TokenIds, TokenIds]:
    """Ragged sequences as tokens [B, T], padded with `</s>`, and lengths [B]."""
    lengths = np.fromiter((len(s) for s in sequences), np.int64, len(sequences))
    tokens = np.full((len(sequences), int(lengths.max(initial=0))), EOS, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
    return tokens, lengths


def score_sequences(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
    """Log-probabilities [B, T] of given tokens with any model; see `SequenceScorer.score`.

    In one pass if the model can, else step by step.
    """
    if supports(model, SequenceScorer):
        return model.score(state, tokens, lengths)
    batch, width = tokens.shape
    out = np.zeros((batch, width), dtype=np.float32)
    rows = np.arange(batch)
    for t in range(width):
        live = np.flatnonzero(lengths[rows] > t)
        if live.size < rows.size:  # rows end at different places; finished ones drop out
            state, rows = state.select(live), rows[live]
        if rows.size == 0:
            break
        column = tokens[rows, t]
        out[rows, t] = to_numpy(model.next_log_probs(state))[np.arange(rows.size), column]
        state = model.advance(state, column)
    return out


def score_choices(model: LanguageModel[Any], state: Any, rows: TokenIds, tokens: TokenIds) -> FloatArray:
    """Log-probabilities [C] of tokens that may come next with any model; see `ChoiceScorer.score_choices`."""
    if supports(model, ChoiceScorer):
        return model.score_choices(state, rows, tokens)
    ones = np.ones(len(tokens), dtype=np.int64)
    scores: FloatArray = score_sequences(model, state.select(rows), tokens[:, None], ones)[:, 0]
    return scores


def prefill_sequences(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> Any:
    """The state after whole sequences: tokens [B, T], of which row b has lengths[b].

    In one pass if the model can (`Prefiller`), else step by step; one token of every row is a step.
    """
    if tokens.shape[1] == 1 and lengths.all():
        return model.advance(state, tokens[:, 0])
    if supports(model, Prefiller):
        return model.prefill(state, tokens, lengths)
    rows = np.arange(len(lengths))
    finished: list[tuple[TokenIds, Any]] = []
    for t in range(tokens.shape[1]):
        live = lengths[rows] > t
        if not live.all():
            finished.append((rows[~live], state.select(np.flatnonzero(~live))))
            state, rows = state.select(np.flatnonzero(live)), rows[live]
        if rows.size == 0:
            break
        state = model.advance(state, tokens[rows, t])
    if not finished:
        return state
    whole = finished[0][1].concatenate([s for _, s in finished[1:]] + ([state] if rows.size else []))
    order = np.concatenate([r for r, _ in finished] + [rows])
    return whole.select(np.argsort(order))


def read_sequences(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> ReadScores:
    """What `score_sequences` and `consume` answer, in one pass if the model can."""
    if supports(model, SequenceReader):
        return model.read(state, tokens, lengths)
    return ReadScores(
        score_sequences(model, state, tokens, lengths), prefill_sequences(model, state, tokens, lengths)
    )
