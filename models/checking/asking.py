"""What checking asks of a model, as values; and the shortest way to answer them.

Work is a generator: it yields what it asks and is resumed with the answer, or yields None to give others their turn.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from models.arrays import FloatArray, TokenIds, to_numpy
from models.protocol import ChoiceScorer, LanguageModel, supports
from models.scoring import score_choices, score_sequences

R = TypeVar("R")

_MAX_DISTRIBUTION_ENTRIES = 1 << 21
"""Of whole distributions [R, V] that are held at once."""


class BeginCall(NamedTuple):
    """The state after `<s>`, so many rows of it; all states of a work must be of one kind, and this is the first."""

    rows: int


class AdvanceCall(NamedTuple):
    """Read one token a row; the answer is the state after it."""

    state: Any
    tokens: TokenIds


class ChoicesCall(NamedTuple):
    """How probable tokens [C] are as the next of rows [C], never falling; the answer is natural logarithms [C]."""

    state: Any
    rows: TokenIds
    tokens: TokenIds


class PredictCall(NamedTuple):
    """What may come next; the answer is log-probabilities [R, V], not to be written."""

    state: Any


class ScoreCall(NamedTuple):
    """How probable tokens [R, T] with lengths [R] are after a state; the answer is [R, T], 0 past a length."""

    state: Any
    tokens: TokenIds
    lengths: TokenIds


CheckerCall: TypeAlias = BeginCall | AdvanceCall | ChoicesCall | PredictCall | ScoreCall
CallGenerator: TypeAlias = Generator[CheckerCall | None, Any, R]


def run_call(model: LanguageModel[Any], asked: CheckerCall) -> Any:
    """The answer to one question, computed now."""
    match asked:
        case BeginCall(rows):
            return model.initial_state(rows)
        case AdvanceCall(state, tokens):
            return model.advance(state, tokens)
        case ChoicesCall(state, rows, tokens):
            return score_choices(model, state, rows, tokens)
        case PredictCall(state):
            return to_numpy(model.next_log_probs(state))
        case ScoreCall(state, tokens, lengths):
            return score_sequences(model, state, tokens, lengths)


def run_calls(model: LanguageModel[Any], work: CallGenerator[R]) -> R:
    """Do a work, answering its questions one by one."""
    told: Any = None
    while True:
        try:
            asked = work.send(told)
        except StopIteration as stopped:
            result: R = stopped.value
            return result
        told = None if asked is None else run_call(model, asked)


def choice_log_probs(
    model: LanguageModel[Any], state: Any, rows: TokenIds, tokens: TokenIds
) -> CallGenerator[FloatArray]:
    """Log-probabilities [C] of tokens as the next of rows, in any order.

    Of a model that cannot score choices and is no table, each row's distribution is looked at once, not once a choice.
    """
    order = np.argsort(rows, kind="stable")
    rows, tokens = rows[order], tokens[order]
    out = np.empty(len(rows), dtype=np.float32)
    if supports(model, ChoiceScorer) or model.family == "ngram":
        out[order] = yield ChoicesCall(state, rows, tokens)
        return out
    told = np.empty(len(rows), dtype=np.float32)
    used, numbers = np.unique(rows, return_inverse=True)
    most = max(_MAX_DISTRIBUTION_ENTRIES // len(model.vocabulary), 1)
    for first in range(0, len(used), most):
        log_probs = yield PredictCall(state.select(used[first : first + most]))
        some = slice(*np.searchsorted(numbers, [first, first + most]))
        told[some] = log_probs[numbers[some] - first, tokens[some]]
    out[order] = told
    return out
