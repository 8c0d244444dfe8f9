"""Random numbers that a row draws whatever rows stand beside it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_AHEAD = 64
"""Numbers taken from a generator at once, in the order in which it would give them one by one."""


class Draws:
    """A stream of numbers in [0, 1) for each of R rows.

    Args:
        seed: of the request.
        streams: a row's own numbers [R], such as those of its prompt and of its choice.
    """

    def __init__(self, seed: int, streams: Sequence[tuple[int, ...]]) -> None:
        seeds = [np.random.SeedSequence(seed, spawn_key=stream) for stream in streams]
        self._generators = [np.random.default_rng(seed) for seed in seeds]
        self._numbers = np.empty((_AHEAD, len(streams)))
        self._taken = _AHEAD

    def take(self) -> npt.NDArray[np.float64]:
        """The next number of each row [R]; not to be written."""
        if self._taken == _AHEAD:
            self._numbers = np.stack([each.random(_AHEAD) for each in self._generators], axis=1)
            self._taken = 0
        self._taken += 1
        numbers: npt.NDArray[np.float64] = self._numbers[self._taken - 1]
        return numbers

    def select(self, rows: Sequence[int]) -> None:
        """Go on with some of the rows."""
        self._generators = [self._generators[row] for row in rows]
        self._numbers = np.ascontiguousarray(self._numbers[:, rows])
