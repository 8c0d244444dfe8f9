"""What may come next after a context."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.decoding.ranking import top_tokens
from models.errors import InvalidInputError
from models.protocol import TopKPredictor, TopTokens, supports
from models.scoring import LOG_ZERO, entropy_bits
from service.engine.calls import next_log_probs, top_k
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.use_cases.limits import Limits
from service.use_cases.prefill import context_groups, prefill
from service.use_cases.reading_order import check_reads_forward
from service.use_cases.tokens import TextOrIds, encode_each

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
