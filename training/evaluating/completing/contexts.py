"""What a model knows of several texts, each read as far as its typist has come."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.arrays import FloatArray, to_numpy
from models.protocol import LanguageModel
from models.scoring import pad_sequences, prefill_sequences


class TypingContexts:
    """A state a text, and the distribution over the token that follows it.

    Args:
        model: any family.
        start: the state that each text begins after, one row.
        batch: the number of texts.
    """

    def __init__(self, model: LanguageModel[Any], start: Any, batch: int) -> None:
        self._model = model
        self._start = start
        self._ids: list[Sequence[int] | None] = [None] * batch
        self._state: Any = start.select(np.zeros(batch, dtype=np.int64))
        self._log_probs: list[FloatArray] = [np.zeros((1, 0), dtype=np.float32)] * batch

    def read(self, wanted: Mapping[int, Sequence[int]]) -> None:
        """Make texts stand at given ids, by number; what they have in common with where they stood is not read again.

        A text that does not go on from there, as its last word is tokenised otherwise now, is read from its beginning.
        """
        moved = [number for number, ids in wanted.items() if ids != self._ids[number]]
        if not moved:
            return
        rests, rows = [], []
        for number in moved:
            known, ids = self._ids[number] or [], wanted[number]
            goes_on = ids[: len(known)] == known
            rests.append(ids[len(known) :] if goes_on else ids)
            rows.append(number if goes_on else len(self._ids))
        state = self._state.concatenate([self._start]).select(np.array(rows))
        tokens, lengths = pad_sequences(rests)
        if tokens.shape[1]:
            state = prefill_sequences(self._model, state, tokens, lengths)
        self._keep(moved, state)
        log_probs = to_numpy(self._model.next_log_probs(state))
        for place, number in enumerate(moved):
            self._ids[number] = wanted[number]
            self._log_probs[number] = log_probs[place : place + 1]

    def state(self, number: int) -> Any:
        """The state of one text, one row."""
        return self._state.select(np.array([number]))

    def log_probs(self, number: int) -> FloatArray:
        """Natural-log probabilities of what follows one text [1, V]."""
        return self._log_probs[number]

    def _keep(self, moved: Sequence[int], state: Any) -> None:
        places = np.arange(len(self._ids))
        places[moved] = len(places) + np.arange(len(moved))
        self._state = self._state.concatenate([state]).select(places)
