"""What completions are searched in: the distribution after a context, and the steps that searches ask for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.completion.search import CompletionSearch
from models.completion.together import next_step_batch
from service.engine.calls import next_log_probs, step
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.engine.looks import NextTokenEntry
from service.engine.rows import materialize
from service.use_cases.limits import Limits
from service.use_cases.prefill import prefill
from service.use_cases.tokens import encode


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
