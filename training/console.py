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

from training.progress import Progress

_LOG_INTERVAL_S = 10.0
_MIN_RATE = 10.0  # below it the rate says nothing: stages counted in per cents or passes
_ONLY_TASK = TaskID(0)


class RateColumn(ProgressColumn):
    """Units a second, with a metric prefix."""

    def render(self, task: Task) -> Text:
        """The rate so far; nothing while it is unknown, or too low to be of use."""
        speed = task.finished_speed or task.speed or 0.0
        return Text(
            f"{with_metric_prefix(speed)}/s" if speed >= _MIN_RATE else "", style="progress.data.speed"
        )


class TerminalProgress:
    """A bar with rate and time left, on standard error."""

    def __init__(self) -> None:
        self._bars: Bars | None = None

    def start(self, description: str, total: float | None) -> None:
        """Draw a new bar below the finished ones."""
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
        atexit.register(self._bars.stop)  # an error amid a stage would leave the terminal without its cursor

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Move the bar."""
        if self._bars is not None:
            self._bars.update(_ONLY_TASK, advance=amount)
            if note:
                self._bars.update(_ONLY_TASK, note=note)

    def finish(self) -> None:
        """Fill the bar and leave it standing."""
        if self._bars is not None:
            task = self._bars.tasks[0]
            self._bars.update(_ONLY_TASK, total=task.completed or 1, completed=task.completed or 1)
            self._bars.stop()
            atexit.unregister(self._bars.stop)
            self._bars = None


class LogProgress:
    """A plain line every ten seconds of a stage, and one when it ends; on standard error.

    Rate and time left count from the first advance on: a resumed stage begins with what is behind it already, and
    the first unit of work often waits for something to be compiled.
    """

    def __init__(self) -> None:
        self._description = ""
        self._total: float | None = None
        self._done = 0.0
        self._started_s = self._printed_s = 0.0
        self._first: tuple[float, float] | None = None  # when it advanced first, and what was done then
        self._note = ""

    def start(self, description: str, total: float | None) -> None:
        """Remember the stage; a short one is worth one line only."""
        self._description, self._total, self._done, self._note = description, total, 0.0, ""
        self._started_s = self._printed_s = time.monotonic()
        self._first = None

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Count, and say so if it was quiet for ten seconds."""
        self._done += amount
        self._note = note or self._note
        now = time.monotonic()
        since, before = self._first = self._first or (now, self._done)
        if now - self._printed_s >= _LOG_INTERVAL_S:
            self._printed_s = now
            rate = (self._done - before) / (now - since) if now > since else 0.0
            share = f"{self._done / self._total:4.0%}" if self._total else with_metric_prefix(self._done)
            speed = f" at {with_metric_prefix(rate)}/s" if rate >= _MIN_RATE else ""
            left = f", {_duration((self._total - self._done) / rate)} left" if self._total and rate else ""
            self._print(f"{share}{speed}{left}{' · ' + self._note if self._note else ''}")

    def finish(self) -> None:
        """Say how long it took."""
        note = f" · {self._note}" if self._note else ""
        self._print(f"done in {time.monotonic() - self._started_s:.1f} s{note}")

    def _print(self, what: str) -> None:
        sys.stderr.write(f"{self._description}: {what}\n")
        sys.stderr.flush()


def console_progress() -> Progress:
    """A bar if standard error is a terminal, else plain lines."""
    return TerminalProgress() if sys.stderr.isatty() else LogProgress()


def _duration(seconds: float) -> str:
    """Seconds as people read them: 45 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def with_metric_prefix(value: float) -> str:
    """A number with a metric prefix and three digits at most: 12, 3.4k, 5.6M."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.1f}{prefix}"
    return f"{value:.0f}"
