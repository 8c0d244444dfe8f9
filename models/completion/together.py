"""Several searches for completions at once: what all ask is asked of the model in one batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.arrays import Array
from models.completion.search import CompletionSearch, SearchStep


class SearchStepBatch:
    """What searches that go on ask.

    Args:
        searches: with what each asks; at least one.

    Attributes:
        state: of all of them [R].
        tokens: to be read [R].
    """

    def __init__(self, searches: Sequence[tuple[CompletionSearch, SearchStep]]) -> None:
        self._searches = searches
        first, *others = (asked.state for _, asked in searches)
        self.state = first.concatenate(others) if others else first
        self.tokens = np.concatenate([asked.tokens for _, asked in searches])

    def update(self, state: Any, log_probs: Array) -> None:
        """Tell each search its rows of the state after the tokens [R], and of what may come next [R, V]."""
        begin = 0
        for search, asked in self._searches:
            end = begin + len(asked.tokens)
            search.update(state.select(np.arange(begin, end)), log_probs[begin:end])
            begin = end


def next_step_batch(searches: Sequence[CompletionSearch]) -> SearchStepBatch | None:
    """What searches ask next; None when all are over."""
    asking = [(search, asked) for search in searches if (asked := search.next_step()) is not None]
    return SearchStepBatch(asking) if asking else None
