"""Several searches for completions at once, with the model's rows of all of them in one batch."""

from collections.abc import Sequence
from typing import Any

from models.arrays import to_numpy
from models.completion.search import CompletionSearch
from models.completion.together import next_step_batch
from models.protocol import LanguageModel


def run_searches(model: LanguageModel[Any], searches: Sequence[CompletionSearch]) -> None:
    """Answer what searches ask, until none asks any more.

    Args:
        model: any family.
        searches: each has been told of the context that it starts from.
    """
    while (asked := next_step_batch(searches)) is not None:
        state = model.advance(asked.state, asked.tokens)
        asked.update(state, to_numpy(model.next_log_probs(state)))
