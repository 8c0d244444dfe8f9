"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

import atexit
import sys
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text
from typing_extensions import override

from training.progress import Progress

_LOG_INTERVAL_S = 10.0
_MIN_RATE = 10.0  # lower rates, of per cent or passes, mean nothing
_ONLY_TASK = TaskID(0)


class RateColumn(ProgressColumn):
    """Units per second, with a metric prefix."""

    def render(self, task: Task) -> Text:
        """Return the rate; empty while it is unknown or too low to be useful."""
        speed = task.finished_speed or task.speed or 0.0
        return Text(
            f"{with_metric_prefix(speed)}/s" if speed >= _MIN_RATE else "", style="progress.data.speed"
        )


class TerminalProgress(Progress):
    """Progress bar with rate and remaining time, on standard error."""

    _bars: Bars | None = None

    @override
    def start(self, description: str, total: float | None) -> None:
        self.finish()
        self._bars = Bars(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%"),
            RateColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
        )
        self._bars.add_task(description, total=total, note="")
        self._bars.start()
        # an error within a stage would leave the cursor hidden
        atexit.register(self._bars.stop)

    @override
    def advance(self, amount: float = 1, note: str = "") -> None:
        if self._bars is not None:
            self._bars.update(_ONLY_TASK, advance=amount)
            if note:
                self._bars.update(_ONLY_TASK, note=note)

    @override
    def finish(self) -> None:
        if self._bars is not None:
            task = self._bars.tasks[0]
            self._bars.update(_ONLY_TASK, total=task.completed or 1, completed=task.completed or 1)
            self._bars.stop()
            atexit.unregister(self._bars.stop)
            self._bars = None


class LogProgress(Progress):
    """Log lines on standard error: every ten seconds of a stage, and at its end.

    Rate and remaining time count from the first advance: a resumed stage starts
    with its finished part, and the first unit often includes compilation.
    """

    @override
    def start(self, description: str, total: float | None) -> None:
        self._description, self._total, self._done, self._note = description, total, 0.0, ""
        self._started_s = self._printed_s = time.monotonic()
        # time and amount done at the first advance
        self._first: tuple[float, float] | None = None

    @override
    def advance(self, amount: float = 1, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        now = time.monotonic()
        since, before = self._first = self._first or (now, self._done)
        if now - self._printed_s >= _LOG_INTERVAL_S:
            self._printed_s = now
            rate = (self._done - before) / (now - since) if now > since else 0.0
            share = f"{self._done / self._total:4.0%}" if self._total else with_metric_prefix(self._done)
            share += f" at {with_metric_prefix(rate)}/s" if rate >= _MIN_RATE else ""
            if self._total and rate:
                share += f", {_duration(max(self._total - self._done, 0) / rate)} left"
            self._print(share)

    @override
    def finish(self) -> None:
        self._print(f"done in {time.monotonic() - self._started_s:.1f} s")

    def _print(self, message: str) -> None:
        note = f" · {self._note}" if self._note else ""
        sys.stderr.write(f"{self._description}: {message}{note}\n")
        sys.stderr.flush()


def console_progress() -> Progress:
    """Return a bar if standard error is a terminal, else a line logger."""
    return TerminalProgress() if sys.stderr.isatty() else LogProgress()


def _duration(seconds: float) -> str:
    """Format seconds with a unit: 45 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def with_metric_prefix(value: float) -> str:
    """Format a number with a metric prefix: 12, 3.4k, 5.6M."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.1f}{prefix}"
    return f"{value:.0f}"
