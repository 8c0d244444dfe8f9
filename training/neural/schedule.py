"""How far a run is, and the learning rate that belongs there."""

import bisect
import math
from collections.abc import Callable
from typing import Literal

from training.neural.settings import TrainSettings

StopReason = Literal["max_minutes", "max_steps", "epochs"]

_CYCLE_START = 1 / 25  # of the peak, Smith's usual ratio
_MIN_RATE_SHARE = 0.01


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

    def resume_from(self, seconds: float) -> None:
        """Count from seconds that the run took before it was interrupted."""
        self._started = self._clock() - seconds

    @property
    def seconds(self) -> float:
        """Since the run began, pauses left out."""
        return self._clock() - self._started

    def done(self, step: int, *, seconds: float | None = None) -> float:
        """The share of the run behind it after `step` updates: of its updates or of its time, the larger.

        Args:
            step: updates made.
            seconds: since the run began, if not by this clock.
        """
        share = step / self._steps
        if self._settings.max_minutes is not None:
            seconds = self.seconds if seconds is None else seconds
            share = max(share, seconds / (60 * self._settings.max_minutes))
        return min(share, 1.0)

    def reached(self, step: int) -> StopReason:
        """Which bound ended the run after `step` updates."""
        if step < self._steps:
            return "max_minutes"
        return "epochs" if step >= self._epoch_steps else "max_steps"

    def learning_rate(self, done: float) -> float:
        """The rate at a share of the run; see `TrainSettings.schedule`."""
        settings, peak = self._settings, self._settings.learning_rate
        if done < settings.warmup:
            lowest = _CYCLE_START if settings.schedule == "one-cycle" else 0.0
            risen = done / settings.warmup
            return peak * max(lowest + (1 - lowest) * risen, _MIN_RATE_SHARE)
        since = (done - settings.warmup) / (1 - settings.warmup)
        if settings.schedule == "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * since))
        if settings.schedule == "one-cycle":
            return peak * self._one_cycle_rate(done)
        if settings.schedule == "step":
            return peak * settings.decay_factor ** bisect.bisect_right(settings.decay_at, done)
        return peak

    def _one_cycle_rate(self, done: float) -> float:
        turn = 1 - self._settings.anneal
        if done < turn:
            fallen = (done - self._settings.warmup) / (turn - self._settings.warmup)
            return 1 - (1 - _CYCLE_START) * fallen
        return _CYCLE_START * (1 - done) / (1 - turn) if turn < 1 else _CYCLE_START
