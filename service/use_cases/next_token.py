"""Next tokens and next words after contexts: the most probable, or full distributions.

Words are found by a search over all their tokenisations.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.calls import Predict, Rank
from models.completion.prefix import split_prefix
from models.completion.search import CompletionSearch, CompletionSettings, run_searches
from models.decoding.top_k import top_tokens
from models.errors import InvalidInputError, UnsupportedParameterError
from models.language_model import LOG_ZERO, TopKPredictor, TopTokens, entropy_bits, supports
from service.engine.batching import materialize, view
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.engine.prefix_cache import NextTokenEntry
from service.use_cases.constants import MAX_SEARCH_STEPS, ROWS_PER_STEP, VALUES_PER_STEP
from service.use_cases.inputs import Limits, TextOrIds, check_reads_forward, encode, encode_each
from service.use_cases.prefill import context_groups, prefill


@dataclass(frozen=True, slots=True)
class NextTokenCommand:
    """A valid request for next tokens.

    Attributes:
        contexts: each with its name in the request, for messages.
        top_k: at least 1; checked against the vocabulary once the model is known.
        entropy: whether to report the entropy.
        model: address; None for the default.
    """

    contexts: tuple[tuple[str, TextOrIds], ...]
    top_k: int
    entropy: bool
    model: str | None


class NextTokens(NamedTuple):
    """Next tokens after one context.

    Attributes:
        top: the most probable tokens.
        entropy_bits: entropy of the full distribution; None if not requested.
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
        bound = "the model's vocabulary has" if largest == loaded.vocab_size else "this service ranks at most"
        raise InvalidInputError(f"top_k is {command.top_k}; {bound} {largest} tokens", parameter="top_k")
    check_top_k(command, limits, instead="accept application/octet-stream for whole distributions")
    contexts = yield from _encode_contexts(loaded, command, limits)
    ranked: list[NextTokens] = []
    for group in context_groups([len(context) for context in contexts]):
        state = yield from prefill(loaded, contexts[group], bos=True)
        ranked += yield from _rank(loaded, state, command)
    return ranked


def check_top_k(command: NextTokenCommand, limits: Limits, *, instead: str) -> None:
    """Refuse to rank more candidates than a reply may have.

    Args:
        command: the request.
        limits: of one request.
        instead: the alternative for this many, for the message.

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
    """Compute the full distribution after each context, as events of blocks of rows [b, V], in order.

    Raises:
        InvalidInputError: a context is wrong.
        UnsupportedParameterError: the model reads from right to left.
    """
    contexts = yield from _encode_contexts(loaded, command, limits)
    for group in context_groups([len(context) for context in contexts]):
        state = yield from prefill(loaded, contexts[group], bos=True)
        for rows in _row_blocks(state, loaded.vocab_size):
            log_probs = yield from Predict(loaded.model, rows)
            yield np.maximum(log_probs, np.float32(LOG_ZERO))


def _encode_contexts(
    loaded: LoadedModel, command: NextTokenCommand, limits: Limits
) -> Work[Any, list[TokenIds]]:
    check_reads_forward(loaded)
    return (yield from encode_each(loaded, command.contexts, limits))


def _rank(loaded: LoadedModel, state: Any, command: NextTokenCommand) -> Work[Any, list[NextTokens]]:
    """Rank the most probable tokens after each row of a state."""
    ranked: list[NextTokens] = []
    if not command.entropy and supports(loaded.model, TopKPredictor):
        for rows in _row_blocks(state, command.top_k):
            ids, log_probs = yield from Rank(loaded.model, rows, command.top_k)
            ranked += [NextTokens(TopTokens(*row), None) for row in zip(ids, log_probs, strict=True)]
        return ranked
    for rows in _row_blocks(state, loaded.vocab_size):
        if ranked:  # before all blocks but the first, so that a single distribution is not delayed
            yield None
        log_probs = yield from Predict(loaded.model, rows)
        entropies = entropy_bits(log_probs).tolist() if command.entropy else [None] * len(log_probs)
        ranked += [
            NextTokens(top_tokens(row, command.top_k), entropy)
            for row, entropy in zip(log_probs, entropies, strict=True)
        ]
    return ranked


def _row_blocks(state: Any, values: int) -> Generator[Any, None, None]:
    """Split a state into blocks of rows, given the number of values computed per row."""
    least, most = ROWS_PER_STEP
    rows = min(max(least, VALUES_PER_STEP // values), most)
    if len(state) <= rows:
        yield state
        return
    for first in range(0, len(state), rows):
        yield state.select(np.arange(first, min(first + rows, len(state))))


def predict_next(
    loaded: LoadedModel, context: str, limits: Limits, *, parameter: str
) -> Work[Any, NextTokenEntry]:
    """Compute or look up the state and distribution after a context; cached for the keystrokes of a word.

    A context with too many tokens is cached too, so that it is not tokenised at every keystroke.
    """
    entry = loaded.next_token_cache.find(context) if loaded.next_token_cache is not None else None
    if entry is None:
        ids = encode(loaded, context, parameter=parameter)
        entry = NextTokenEntry(len(ids))
        if len(ids) <= limits.max_tokens_per_sequence:
            state = yield from prefill(loaded, [ids], bos=True)
            log_probs = yield from Predict(loaded.model, state)
            entry = NextTokenEntry(len(ids), materialize(state), np.array(log_probs))
        if loaded.next_token_cache is not None:
            loaded.next_token_cache.put(context, entry)
    return entry


MAX_NEXT_WORDS = 100
"""Maximum number of words to rank."""


@dataclass(frozen=True, slots=True)
class NextWord:
    """A candidate for the next word.

    Attributes:
        text: the word.
        logprob: natural-log probability that the text continues with this word and the word ends there.
    """

    text: str
    logprob: float


class NextWords(NamedTuple):
    """Next words after one context.

    Attributes:
        words: the most probable first.
        unexplored_mass: share of the probability of all words not covered by the search.
    """

    words: tuple[NextWord, ...]
    unexplored_mass: float


def max_word_steps(loaded: LoadedModel) -> int:
    """Return the maximum number of rows read after a context: none where tokens are words."""
    return 0 if loaded.token_trie.whole_words else MAX_SEARCH_STEPS


def rank_next_words(
    loaded: LoadedModel, command: NextTokenCommand, limits: Limits
) -> Work[Any, list[NextWords]]:
    """Rank the most probable next words after each context.

    Raises:
        UnsupportedParameterError: a context is token ids, too many words are requested, or the model reads
            from right to left.
        InvalidInputError: a context is wrong, or the reply would be too long.
    """
    check_reads_forward(loaded)
    if command.top_k > MAX_NEXT_WORDS:
        raise UnsupportedParameterError(
            f"top_k is {command.top_k}; at most {MAX_NEXT_WORDS} words are ranked", parameter="top_k"
        )
    check_top_k(command, limits, instead="ask in several requests")
    ranked: list[NextWords] = []
    for parameter, context in command.contexts:
        if ranked:  # a cached context makes no model call to let other requests run
            yield None
        if not isinstance(context, str):
            raise UnsupportedParameterError(
                f"{parameter} is token ids; with unit 'word' it must be a text", parameter=parameter
            )
        ranked.append(
            (yield from _rank_words_after(loaded, context, command.top_k, limits, parameter=parameter))
        )
    return ranked


def _rank_words_after(
    loaded: LoadedModel, context: str, count: int, limits: Limits, *, parameter: str
) -> Work[Any, NextWords]:
    limits.check_characters(context, parameter=parameter)
    typed = split_prefix(
        loaded.tokenizer, f"{context} " if context and not context[-1].isspace() else context
    )
    entry = yield from predict_next(loaded, typed.context, limits, parameter=parameter)
    limits.check_length(entry.num_tokens, parameter=parameter)
    search = CompletionSearch(
        loaded.token_trie, typed.spelled, CompletionSettings(limit=count, max_steps=MAX_SEARCH_STEPS)
    )
    search.update(view(entry.state), entry.log_probs)
    yield from run_searches(loaded.model, [search])
    found = search.result()
    words = (NextWord(word.text, math.log(word.mass)) for word in found.completions if word.is_complete)
    return NextWords(tuple(words)[:count], found.unexplored_mass)
