"""A model that some words are poison to, said twice; for a service in another process."""

import time

import numpy as np

from tests.fakes import FakeModel

RAISES, HANGS, SPEAKS_NONSENSE = "house house", "mat mat", "dog dog"
HANG_S = 1.0


class PoisonedModel(FakeModel):
    """Raises at one word that is said twice, takes a second over another, and says NaN after a third.

    Args:
        hang_s: how long the second takes; in the model's options.
    """

    def __init__(self, vocabulary, *, hang_s=HANG_S, **options):
        super().__init__(vocabulary, **options)
        self.options["hang_s"] = hang_s
        words = (poison.split()[0] for poison in (RAISES, HANGS, SPEAKS_NONSENSE))
        self._raises, self._hangs, self._nonsense = map(vocabulary.id_of, words)
        self._after_nonsense = len(vocabulary)  # stands in states for the third, said twice

    def advance(self, state, tokens):
        twice = np.asarray(tokens)[state.last == tokens]
        if self._raises in twice:
            raise ZeroDivisionError("poison")
        if self._hangs in twice:
            time.sleep(self.options["hang_s"])
        told = super().advance(state, tokens)
        told.last = np.where(
            (state.last == tokens) & (tokens == self._nonsense), self._after_nonsense, tokens
        )
        return told

    def next_log_probs(self, state):
        is_nonsense = state.last == self._after_nonsense
        rows = self.table[np.where(is_nonsense, 0, state.last)]
        return np.where(is_nonsense[:, None], np.float32(np.nan), rows)
