"""What checking asks of a model, as values; and the shortest way to answer them.

Work is a generator: it yields what it asks and is resumed with the answer, or yields None to give others their turn.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from models.arrays import FloatArray, TokenIds, to_numpy
from models.protocol import ChoiceScorer, LanguageModel, can
from models.scoring import score_choices, score_sequences

R = TypeVar("R")

_NUMBERS_AT_ONCE = 1 << 21
"""Of whole distributions [R, V] that are held at once."""


class Begin(NamedTuple):
    """The state after `<s>`, so many rows of it; all states of a work must be of one kind, and this is the first."""

    rows: int


class Advance(NamedTuple):
    """Read one token a row; the answer is the state after it."""

    state: Any
    tokens: TokenIds


class Choices(NamedTuple):
    """How probable tokens [C] are as the next of rows [C], never falling; the answer is natural logarithms [C]."""

    state: Any
    rows: TokenIds
    tokens: TokenIds


class Predict(NamedTuple):
    """What may come next; the answer is log-probabilities [R, V], not to be written."""

    state: Any


class Score(NamedTuple):
    """How probable tokens [R, T] with lengths [R] are after a state; the answer is [R, T], 0 past a length."""

    state: Any
    tokens: TokenIds
    lengths: TokenIds


Asked: TypeAlias = Begin | Advance | Choices | Predict | Score
Work: TypeAlias = Generator[Asked | None, Any, R]


def answer(model: LanguageModel[Any], asked: Asked) -> Any:
    """The answer to one question, computed now."""
    match asked:
        case Begin(rows):
            return model.initial_state(rows)
        case Advance(state, tokens):
            return model.advance(state, tokens)
        case Choices(state, rows, tokens):
            return score_choices(model, state, rows, tokens)
        case Predict(state):
            return to_numpy(model.next_log_probs(state))
        case Score(state, tokens, lengths):
            return score_sequences(model, state, tokens, lengths)


def result_of(model: LanguageModel[Any], work: Work[R]) -> R:
    """Do a work, answering its questions one by one."""
    told: Any = None
    while True:
        try:
            asked = work.send(told)
        except StopIteration as stopped:
            result: R = stopped.value
            return result
        told = None if asked is None else answer(model, asked)


def choices(model: LanguageModel[Any], state: Any, rows: TokenIds, tokens: TokenIds) -> Work[FloatArray]:
    """Log-probabilities [C] of tokens as the next of rows, in any order.

    Of a model that cannot score choices and is no table, each row's distribution is looked at once, not once a choice.
    """
    order = np.argsort(rows, kind="stable")
    rows, tokens = rows[order], tokens[order]
    out = np.empty(len(rows), dtype=np.float32)
    if can(model, ChoiceScorer) or model.family == "ngram":
        out[order] = yield Choices(state, rows, tokens)
        return out
    told = np.empty(len(rows), dtype=np.float32)
    used, numbers = np.unique(rows, return_inverse=True)
    most = max(_NUMBERS_AT_ONCE // len(model.vocabulary), 1)
    for first in range(0, len(used), most):
        log_probs = yield Predict(state.select(used[first : first + most]))
        some = slice(*np.searchsorted(numbers, [first, first + most]))
        told[some] = log_probs[numbers[some] - first, tokens[some]]
    out[order] = told
    return out
