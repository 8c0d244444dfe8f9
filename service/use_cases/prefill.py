"""Reading contexts: the state of a model after each of several sequences."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.protocol import LanguageModel
from models.scoring import consume, pad
from service.engine.job import Work

TOKENS_PER_STEP = 2048
"""How much model work is done before other requests have their turn."""


GROUP_TOKENS = 1 << 16
"""Tokens of contexts that states are kept of at once: what a cache remembers of them takes room."""


def prefill(model: LanguageModel[Any], contexts: Sequence[TokenIds], *, bos: bool) -> Work[Any, Any]:
    """Read B contexts, those of like length at once, a bounded piece a step; a use case.

    Args:
        model: any.
        contexts: B sequences of ids, each [T_b] and possibly empty; B is at least 1.
        bos: whether `<s>` stands before them.

    Returns:
        A state of B rows, in the order of the contexts.
    """
    begin = model.initial_state if bos else model.empty_state
    states: list[Any] = []
    orders: list[npt.NDArray[np.int64]] = []
    for rows in chunks(np.array([len(context) for context in contexts], dtype=np.int64)):
        if states:
            yield None
        tokens, lengths = pad([contexts[i] for i in rows])
        state = begin(len(rows))
        for first, part, left in pieces(tokens, lengths):
            if first:
                yield None
            state = consume(model, state, part, left)
        states.append(state)
        orders.append(rows)
    if len(contexts) == 1:
        return states[0]
    whole = states[0].concatenate(states[1:]) if len(states) > 1 else states[0]
    return whole.select(np.argsort(np.concatenate(orders)))


def groups(lengths: Sequence[int]) -> Iterator[slice]:
    """Contexts of these lengths in runs of at most `GROUP_TOKENS` tokens, or one context."""
    first = total = 0
    for last, length in enumerate(lengths):
        if total + length > GROUP_TOKENS and last > first:
            yield slice(first, last)
            first, total = last, 0
        total += length
    if lengths:
        yield slice(first, len(lengths))


def chunks(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Indices in order of length, in runs of at most `TOKENS_PER_STEP` padded tokens, or one sequence."""
    order = np.argsort(lengths, kind="stable")
    first = 0
    for last in range(len(order)):
        if (last + 1 - first) * lengths[order[last]] > TOKENS_PER_STEP and last > first:
            yield order[first:last]
            first = last
    if len(order):
        yield order[first:]


def pieces(tokens: TokenIds, lengths: TokenIds) -> Iterator[tuple[int, TokenIds, TokenIds]]:
    """A chunk's tokens [B, T] and lengths [B], in pieces of `TOKENS_PER_STEP` columns, with their first columns.

    Only a chunk of one long sequence has more than one piece.
    """
    for first in range(0, tokens.shape[1], TOKENS_PER_STEP):
        part = tokens[:, first : first + TOKENS_PER_STEP]
        yield first, part, np.clip(lengths - first, 0, TOKENS_PER_STEP)
