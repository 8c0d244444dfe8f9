"""Reading contexts: the state of a model after each of several sequences."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.arrays import TokenIds
from models.protocol import LanguageModel
from models.scoring import consume, pad
from service.engine.job import Work

TOKENS_PER_STEP = 2048
"""How much model work is done before other requests have their turn."""


def prefill(model: LanguageModel[Any], contexts: Sequence[TokenIds], *, bos: bool) -> Work[Any, Any]:
    """Read B contexts at once, some columns of all of them a step; a use case.

    Args:
        model: any.
        contexts: B sequences of ids, each [T_b] and possibly empty; B is at least 1.
        bos: whether `<s>` stands before them.

    Returns:
        A state of B rows, in the order of the contexts.
    """
    state = model.initial_state(len(contexts)) if bos else model.empty_state(len(contexts))
    tokens, lengths = pad(contexts)
    columns = max(1, TOKENS_PER_STEP // len(contexts))
    for first in range(0, tokens.shape[1], columns):
        if first:
            yield None
        left = np.clip(lengths - first, 0, columns)
        state = consume(model, state, tokens[:, first : first + columns], left)
    return state
