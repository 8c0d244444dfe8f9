"""Next tokens and next words after contexts: most probable ones, or whole distributions.

Words are found by a search over all their tokenisations.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.completion.prefix import split_prefix
from models.completion.search import CompletionSearch, CompletionSettings, next_step_batch
from models.decoding.top_k import top_tokens
from models.errors import InvalidInputError, UnsupportedParameterError
from models.language_model import LOG_ZERO, TopKPredictor, TopTokens, entropy_bits, supports
from service.engine.batching import materialize, view
from service.engine.calls import next_log_probs, step, top_k
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.engine.prefix_cache import NextTokenEntry
from service.use_cases.inputs import Limits, TextOrIds, check_reads_forward, encode, encode_each
from service.use_cases.prefill import context_groups, prefill

_VALUES_PER_STEP = 1 << 17
_ROWS_PER_STEP = (16, 256)
"""Entries of [B, V] computed before other requests have their turn: a millisecond or so; and of how many rows at least,
as fewer take a network nearly as long, and at most."""


@dataclass(frozen=True, slots=True)
class NextTokenCommand:
    """A valid request for next tokens.

    Attributes:
        contexts: each with its name in the request, for messages.
        top_k: at least 1; whether it exceeds the vocabulary only the model can tell.
        entropy: whether it is asked for too.
        model: address; None for the default.
    """

    contexts: tuple[tuple[str, TextOrIds], ...]
    top_k: int
    entropy: bool
    model: str | None


class NextTokens(NamedTuple):
    """What may follow one context.

    Attributes:
        top: the most probable tokens.
        entropy_bits: of the whole distribution; None if not asked for.
    """

    top: TopTokens
    entropy_bits: float | None


def rank_next_tokens(
    loaded: LoadedModel, command: NextTokenCommand, limits: Limits
) -> Work[Any, list[NextTokens]]:
    """Rank the most probable next tokens after each context.

    Raises:
        InvalidInputError: top_k exceeds the vocabulary, a context is wrong, or the reply would be too long.
        UnsupportedParameterError: the model reads from right to left.
    """
    largest = min(loaded.vocab_size, limits.max_top_k or loaded.vocab_size)
    if command.top_k > largest:
        what = "the model's vocabulary has" if largest == loaded.vocab_size else "this service ranks at most"
        raise InvalidInputError(f"top_k is {command.top_k}; {what} {largest} tokens", parameter="top_k")
    check_top_k(command, limits, instead="accept application/octet-stream for whole distributions")
    contexts = yield from _encode_contexts(loaded, command, limits)
    answers: list[NextTokens] = []
    for group in context_groups([len(context) for context in contexts]):
        state = yield from prefill(loaded, contexts[group], bos=True)
        answers += yield from _rank(loaded, state, command)
    return answers


def check_top_k(command: NextTokenCommand, limits: Limits, *, instead: str) -> None:
    """Refuse to rank more candidates than a reply may have.

    Args:
        command: what is asked.
        limits: of one request.
        instead: the way to have so many.

    Raises:
        InvalidInputError: there are too many.
    """
    count = len(command.contexts)
    limits.check_entries(
        count * command.top_k,
        parameter="top_k",
        description=f"top_k is {command.top_k} for {count} contexts",
        instead=instead,
    )


def next_distributions(
    loaded: LoadedModel, command: NextTokenCommand, limits: Limits
) -> Work[FloatArray, None]:
    """The whole distribution after each context, as events of some rows [b, V] each, in order.

    Raises:
        InvalidInputError: a context is wrong.
        UnsupportedParameterError: the model reads from right to left.
    """
    contexts = yield from _encode_contexts(loaded, command, limits)
    for group in context_groups([len(context) for context in contexts]):
        state = yield from prefill(loaded, contexts[group], bos=True)
        for some in _row_blocks(state, loaded.vocab_size):
            log_probs = yield from next_log_probs(loaded.model, some)
            yield np.maximum(log_probs, np.float32(LOG_ZERO))


def _encode_contexts(
    loaded: LoadedModel, command: NextTokenCommand, limits: Limits
) -> Work[Any, list[TokenIds]]:
    check_reads_forward(loaded)
    return (yield from encode_each(loaded, command.contexts, limits))


def _rank(loaded: LoadedModel, state: Any, command: NextTokenCommand) -> Work[Any, list[NextTokens]]:
    """The most probable tokens after each row of a state."""
    answers: list[NextTokens] = []
    if not command.entropy and supports(loaded.model, TopKPredictor):
        for some in _row_blocks(state, command.top_k):
            ids, log_probs = yield from top_k(loaded.model, some, command.top_k)
            answers += [NextTokens(TopTokens(*row), None) for row in zip(ids, log_probs, strict=True)]
        return answers
    for some in _row_blocks(state, loaded.vocab_size):
        if answers:  # not after the last: whoever waits for one distribution waits for nobody's turn
            yield None
        log_probs = yield from next_log_probs(loaded.model, some)
        entropies = entropy_bits(log_probs).tolist() if command.entropy else [None] * len(log_probs)
        answers += [
            NextTokens(top_tokens(row, command.top_k), entropy)
            for row, entropy in zip(log_probs, entropies, strict=True)
        ]
    return answers


def _row_blocks(state: Any, values: int) -> Generator[Any, None, None]:
    """A state in runs of rows, for each of which so many values are computed."""
    least, most = _ROWS_PER_STEP
    rows = min(max(least, _VALUES_PER_STEP // values), most)
    if len(state) <= rows:
        yield state
        return
    for first in range(0, len(state), rows):
        yield state.select(np.arange(first, min(first + rows, len(state))))


def predict_next(
    loaded: LoadedModel, context: str, limits: Limits, *, parameter: str
) -> Work[Any, NextTokenEntry]:
    """What may come after a context; at every key of a word but the first that is known.

    A text that has too many tokens is remembered too: it is not tokenised at every key to be refused.
    """
    look = loaded.next_token_cache.find(context) if loaded.next_token_cache is not None else None
    if look is None:
        ids = encode(loaded, context, parameter=parameter)
        look = NextTokenEntry(len(ids))
        if len(ids) <= limits.max_tokens_per_sequence:
            state = yield from prefill(loaded, [ids], bos=True)
            log_probs = yield from next_log_probs(loaded.model, state)
            look = NextTokenEntry(len(ids), materialize(state), np.array(log_probs))
        if loaded.next_token_cache is not None:
            loaded.next_token_cache.put(context, look)
    return look


def run_completion_searches(loaded: LoadedModel, searches: Sequence[CompletionSearch]) -> Work[Any, None]:
    """Go on with searches, all together, until each is over."""
    while (asked := next_step_batch(searches)) is not None:
        asked.update(*(yield from step(loaded.model, asked.state, asked.tokens)))


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
