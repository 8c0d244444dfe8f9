"""Several searches for completions at once, with the model's rows of all of them in one batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.arrays import to_numpy
from models.completion.search import CompletionSearch
from models.protocol import LanguageModel


def run_searches(model: LanguageModel[Any], searches: Sequence[CompletionSearch]) -> None:
    """Answer what searches ask, until none asks any more.

    Args:
        model: any family.
        searches: each has been told of the context that it starts from.
    """
    while True:
        asking = [(search, asked) for search in searches if (asked := search.ask()) is not None]
        if not asking:
            return
        before = asking[0][1].state.concatenate([asked.state for _, asked in asking[1:]])
        tokens = np.concatenate([asked.tokens for _, asked in asking])
        state = model.advance(before, tokens)
        log_probs = to_numpy(model.next_log_probs(state))
        begin = 0
        for search, asked in asking:
            end = begin + len(asked.tokens)
            search.tell(state.select(np.arange(begin, end)), log_probs[begin:end])
            begin = end
        searches = [search for search, _ in asking]
