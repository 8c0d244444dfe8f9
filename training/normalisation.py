"""Whether an n-gram model that comes from elsewhere is one: do its probabilities sum to 1?"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.ngram.model import NGramModel, NGramState
from models.vocabulary import EOS

SUM_TOLERANCE = 1e-5
"""Sums no further from 1 than this are sums of rounded numbers."""

_CONTEXTS_BY_LENGTH = 100
_BATCH = 8


class RowSums(NamedTuple):
    """What the probabilities of the next token sum to, after some contexts.

    Attributes:
        contexts: how many were looked at.
        largest_deviation: the largest |Σp − 1|.
    """

    contexts: int
    largest_deviation: float

    @property
    def normalised(self) -> bool:
        """Whether all are 1, but for rounding."""
        return self.largest_deviation <= SUM_TOLERANCE

    def as_facts(self) -> dict[str, Any]:
        """For metrics.json."""
        return {**self._asdict(), "normalised": self.normalised}


def measure_row_sums(model: NGramModel) -> RowSums:
    """Sum up after the empty context, after `<s>`, and after a hundred contexts of each length."""
    states = np.concatenate([[0, model.automaton.initial], *_sample_states(model)]).astype(np.int32)
    worst = 0.0
    for begin in range(0, len(states), _BATCH):
        rows = np.exp(model.next_log_probs(NGramState(states[begin : begin + _BATCH])), dtype=np.float64)
        worst = max(worst, float(np.abs(rows.sum(axis=1) - 1).max()))
    return RowSums(len(states), worst)


def _sample_states(model: NGramModel) -> Iterator[npt.NDArray[np.int64]]:
    """States of each length, evenly spread; not those after `</s>`, where nothing follows."""
    automaton = model.automaton
    for begin, end in pairwise(automaton.order_starts[:-1].tolist()):
        places = np.flatnonzero(~_is_end(automaton.words[begin:end])) + begin
        some = np.linspace(0, len(places) - 1, min(len(places), _CONTEXTS_BY_LENGTH)).astype(np.int64)
        yield places[some] + 1  # an n-gram's state comes one later


def _is_end(words: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
    """Which words are `</s>` [n]; those of a quantised model are three bytes each, the lowest first [n, 3]."""
    ends: npt.NDArray[np.bool_]
    ends = words == EOS if words.ndim == 1 else np.all(words == np.array([EOS, 0, 0], np.uint8), axis=1)
    return ends
