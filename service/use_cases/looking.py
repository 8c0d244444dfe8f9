"""What completions are searched in: the distribution after a context, and the steps that searches ask for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.completion.search import CompletionSearch
from service.engine.calls import next_log_probs, step
from service.engine.host import LoadedModel
from service.engine.job import Work
from service.engine.looks import Look
from service.engine.rows import alone, concatenated
from service.use_cases.limits import Limits
from service.use_cases.prefill import prefill
from service.use_cases.tokens import encode


def look_after(loaded: LoadedModel, context: str, limits: Limits, *, parameter: str) -> Work[Any, Look]:
    """What may come after a context; at every key of a word but the first that is known.

    A text that has too many tokens is remembered too: it is not tokenised at every key to be refused.
    """
    look = loaded.looks.find(context) if loaded.looks is not None else None
    if look is None:
        ids = encode(loaded, context, parameter=parameter)
        look = Look(len(ids))
        if len(ids) <= limits.max_tokens_per_sequence:
            state = yield from prefill(loaded, [ids], bos=True)
            log_probs = yield from next_log_probs(loaded.model, state)
            look = Look(len(ids), alone(state), np.array(log_probs))
        if loaded.looks is not None:
            loaded.looks.keep(context, look)
    return look


def go_through(loaded: LoadedModel, searches: Sequence[CompletionSearch]) -> Work[Any, None]:
    """Go on with searches, all together, until each is over."""
    while True:
        asked = [(search, wanted) for search in searches if (wanted := search.ask()) is not None]
        if not asked:
            return
        state = concatenated([wanted.state for _, wanted in asked])
        tokens = np.concatenate([wanted.tokens for _, wanted in asked])
        after, log_probs = yield from step(loaded.model, state, tokens)
        first = 0
        for search, wanted in asked:
            rows = slice(first, first + len(wanted.tokens))
            search.tell(after.select(rows), log_probs[rows])
            first = rows.stop
