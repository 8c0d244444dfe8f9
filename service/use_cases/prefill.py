"""Reading contexts: the state of a model after each of several sequences."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.arrays import TokenIds
from models.protocol import LanguageModel
from service.engine.job import Work

TOKENS_PER_STEP = 2048
"""How much model work is done before other requests have their turn."""


def prefill(model: LanguageModel[Any], contexts: Sequence[TokenIds], *, bos: bool) -> Work[Any, Any]:
    """Read B contexts at once; a use case.

    The longest is begun first and the others join as their first token comes due, so that
    all end together and no row is ever advanced over padding.

    Args:
        model: any.
        contexts: B sequences of ids, each [T_b] and possibly empty; B is at least 1.
        bos: whether `<s>` stands before them.

    Returns:
        A state of B rows, in the order of the contexts.
    """
    start = model.initial_state if bos else model.empty_state
    lengths = np.array([len(context) for context in contexts], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    tokens = np.zeros((len(contexts), longest), dtype=np.int64)  # [B, T], flush right
    for row, index in enumerate(order):
        if lengths[index]:
            tokens[row, -lengths[index] :] = contexts[index]
    # how many rows have begun by each step
    live_at = np.searchsorted(-lengths[order], -(longest - np.arange(longest)), side="right")
    state: Any = None
    live = done = 0
    for t, begun in enumerate(live_at.tolist()):
        if begun > live:
            state = start(begun) if state is None else state.concatenate([start(begun - live)])
            live = begun
        state = model.advance(state, tokens[:live, t])
        done += live
        if done >= TOKENS_PER_STEP:
            done = 0
            yield None
    if live < len(contexts):
        empty = start(len(contexts) - live)
        state = empty if state is None else state.concatenate([empty])
    if len(contexts) == 1:
        return state
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return state.select(back)
