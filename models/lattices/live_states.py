"""The model's states after tokens that are still to go on."""

from typing import Any

import numpy as np

from models.lattices.growing import GrowableArray
from models.lattices.lattice import Indices
from models.lattices.spelling import LabelTokens
from models.lattices.word_scores import advance_words
from models.protocol import LanguageModel

NO_STATE = -1
"""The row of tokens that go no further."""


class ActiveStates:
    """The model's states after tokens that are still to go on; tokens that came the same way share one.

    Args:
        model: any.
        spelling: of words as its tokens.
    """

    def __init__(self, model: LanguageModel[Any], spelling: LabelTokens) -> None:
        self._model, self._spelling = model, spelling
        self.initial = model.initial_state(1)
        self._pool = self.initial
        self._rows = GrowableArray(np.int64)

    def after(self, tokens: Indices, labels: Indices) -> tuple[Any, Indices]:
        """The states after tokens and one label more: a state of distinct rows, and the row of each [P]."""
        num_labels = len(self._spelling.lengths)
        pairs, places = np.unique(self._rows[tokens] * num_labels + labels, return_inverse=True)
        rows, labels = np.divmod(pairs, num_labels)
        return advance_words(self._model, self._pool, rows, labels, self._spelling), places

    def add(self, state: Any, rows: Indices) -> None:
        """Take states of new tokens in; −1 is the row of tokens that go no further."""
        begin = len(self._pool) if len(self._rows) else 0
        self._pool = self._pool.concatenate([state]) if begin else state
        self._rows.append(np.where(rows < 0, rows, begin + rows))

    def retain(self, tokens: Indices) -> None:
        """Forget the states of all other tokens."""
        used, self._rows[tokens] = np.unique(self._rows[tokens], return_inverse=True)
        self._pool = self._pool.select(used)
