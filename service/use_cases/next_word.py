"""Which word may come next after a context, however it is cut into tokens."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from models.completion.search import CompletionSearch, CompletionSettings
from models.completion.typed import split_prefix
from models.errors import UnsupportedParameterError
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.engine.rows import view
from service.use_cases.limits import Limits
from service.use_cases.looking import predict_next, run_completion_searches
from service.use_cases.next_token import NextTokenCommand, check_top_k
from service.use_cases.reading_order import check_reads_forward

MAX_NEXT_WORDS = 100
"""Words to rank, at most."""

_MAX_SEARCH_STEPS = 256
"""Rows that the model is asked for to rank the words after one context, at most."""


@dataclass(frozen=True, slots=True)
class NextWord:
    """A word that may come next.

    Attributes:
        text: it.
        logprob: the natural logarithm of the probability that the text goes on with it and it ends there.
    """

    text: str
    logprob: float


class NextWords(NamedTuple):
    """What may follow one context.

    Attributes:
        words: the most probable first.
        unexplored_mass: the share of the probability of any word for which none was found.
    """

    words: tuple[NextWord, ...]
    unexplored_mass: float


def max_word_steps(loaded: LoadedModel) -> int:
    """Rows that the model may be asked for after a context: none where tokens are words."""
    return 0 if loaded.token_trie.whole_words else _MAX_SEARCH_STEPS


def rank_next_words(
    loaded: LoadedModel, command: NextTokenCommand, limits: Limits
) -> Work[Any, list[NextWords]]:
    """Rank the most probable next words after each context.

    Raises:
        UnsupportedParameterError: a context is token ids, more words are asked for than can be, or the model reads
            from right to left.
        InvalidInputError: a context is wrong, or the reply would be too long.
    """
    check_reads_forward(loaded)
    if command.top_k > MAX_NEXT_WORDS:
        raise UnsupportedParameterError(
            f"top_k is {command.top_k}; at most {MAX_NEXT_WORDS} words are ranked", parameter="top_k"
        )
    check_top_k(command, limits, instead="ask in several requests")
    answers: list[NextWords] = []
    for parameter, context in command.contexts:
        if answers:  # what is known of a context asks the model nothing
            yield None
        if not isinstance(context, str):
            raise UnsupportedParameterError(
                f"{parameter} is token ids; with unit 'word' it must be a text", parameter=parameter
            )
        answers.append(
            (yield from _rank_words_after(loaded, context, command.top_k, limits, parameter=parameter))
        )
    return answers


def _rank_words_after(
    loaded: LoadedModel, context: str, count: int, limits: Limits, *, parameter: str
) -> Work[Any, NextWords]:
    limits.check_characters(context, parameter=parameter)
    typed = split_prefix(
        loaded.tokenizer, f"{context} " if context and not context[-1].isspace() else context
    )
    look = yield from predict_next(loaded, typed.context, limits, parameter=parameter)
    limits.check_length(look.num_tokens, parameter=parameter)
    search = CompletionSearch(
        loaded.token_trie, typed.spelled, CompletionSettings(limit=count, max_steps=_MAX_SEARCH_STEPS)
    )
    search.update(view(look.state), look.log_probs)
    yield from run_completion_searches(loaded, [search])
    found = search.result()
    words = (NextWord(one.text, math.log(one.mass)) for one in found.completions if one.is_complete)
    return NextWords(tuple(words)[:count], found.unexplored_mass)
