"""How far a run is, and the learning rate that belongs there."""

import math
from collections.abc import Callable
from typing import Literal

from training.neural.settings import TrainSettings

Stop = Literal["max_minutes", "max_steps", "epochs"]


class Schedule:
    """Maps updates and the clock to a share of the run.

    Args:
        settings: the bounds and the shape of the learning rate.
        steps_per_epoch: updates in one pass over the text.
        clock: seconds that only grow.
    """

    def __init__(self, settings: TrainSettings, *, steps_per_epoch: int, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._epoch_steps = settings.epochs * steps_per_epoch
        self._steps = min(self._epoch_steps, settings.max_steps or self._epoch_steps)
        self._clock = clock
        self._started = clock()

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return self._clock() - self._started

    def done(self, step: int) -> float:
        """The share of the run behind it after `step` updates: of its updates or of its time, the larger."""
        share = step / self._steps
        if self._settings.max_minutes is not None:
            share = max(share, self.seconds / (60 * self._settings.max_minutes))
        return min(share, 1.0)

    def reached(self, step: int) -> Stop:
        """Which bound ended the run after `step` updates."""
        if step < self._steps:
            return "max_minutes"
        return "epochs" if step >= self._epoch_steps else "max_steps"

    def learning_rate(self, done: float) -> float:
        """A linear rise to the peak, then half a cosine down to zero (Loshchilov and Hutter 2017)."""
        warmup, peak = self._settings.warmup, self._settings.learning_rate
        if done < warmup:
            return peak * max(done / warmup, 0.01)
        return peak * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))
