"""Progress of long operations, on standard error too, and Ctrl-C and SIGTERM in training commands.

Progress is a bar on a terminal, plain lines elsewhere.

Signals act between two updates, so saved states are complete. Ctrl-C ends the training;
the model is evaluated and published. SIGTERM, which orchestrators send, only saves the state:
time may be short, and a half-trained model must not be served because a machine is drained.
"""

import atexit
import os
import signal
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

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

from models.errors import DomainError
from models.training_status import TrainingStatus, remove_status, write_status

_LOG_INTERVAL_S = 10.0
_MIN_RATE = 10.0  # lower rates, of per cent or passes, mean nothing
_ONLY_TASK = TaskID(0)

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a command ended by SIGTERM: 143, as without a handler."""


class HistoryRecord(NamedTuple):
    """Record of a run at one step.

    Attributes:
        step: number of updates.
        epoch: index of the pass over the text, from 0.
        tokens: training tokens seen.
        seconds: seconds since the run began.
        train_loss: nats per token, a moving average of about fifty updates.
        valid_perplexity: validation perplexity per token, of the averaged weights once they exist, in the
            context `train.validate_context`; None if not measured or infinite.
        learning_rate: learning rate of the last update.
        grad_norm: gradient norm of the last update, before clipping.
        clipped_norm: gradient norm after clipping.
        tokens_per_second: since the last record, with validation time; None if no time passed.
    """

    step: int
    epoch: int
    tokens: int
    seconds: float
    train_loss: float
    valid_perplexity: float | None
    learning_rate: float
    grad_norm: float
    clipped_norm: float | None = None
    tokens_per_second: float | None = None


class Progress:
    """Receiver that ignores progress; the command line's draw a bar or log lines."""

    def start(self, description: str, total: float | None) -> None:
        """Begin a stage of `total` units of work; None if unknown."""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Add `amount` finished units; `note`, such as the current loss, replaces the last."""

    def finish(self) -> None:
        """End the stage."""

    @contextmanager
    def stage(self, description: str, total: float | None = None) -> Iterator[None]:
        """Begin a stage, and end it after the block unless that raised."""
        self.start(description, total)
        yield
        self.finish()


SILENT = Progress()
"""Shared no-op progress."""


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


class _PacedProgress(Progress):
    """Progress that is shown at intervals.

    Rate and remaining time count from the first advance: a resumed stage starts
    with its finished part, and the first unit often includes compilation.
    """

    _interval_s = _LOG_INTERVAL_S

    @override
    def start(self, description: str, total: float | None) -> None:
        self._description, self._total, self._done, self._note = description, total, 0.0, ""
        self._started_s = self._shown_s = time.monotonic()
        # time and amount done at the first advance
        self._first: tuple[float, float] | None = None

    @override
    def advance(self, amount: float = 1, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        now = time.monotonic()
        since, before = self._first = self._first or (now, self._done)
        if now - self._shown_s >= self._interval_s:
            self._shown_s = now
            rate = (self._done - before) / (now - since) if now > since else 0.0
            left = max(self._total - self._done, 0) / rate if self._total and rate else None
            self._show(self._done / self._total if self._total else None, rate, left)

    @abstractmethod
    def _show(self, share: float | None, rate: float, seconds_left: float | None) -> None:
        """Show the stage: completed share, units per second, and remaining time, as far as known."""


class LogProgress(_PacedProgress):
    """Log lines on standard error: every ten seconds of a stage, and at its end."""

    @override
    def finish(self) -> None:
        self._print(f"done in {time.monotonic() - self._started_s:.1f} s")

    @override
    def _show(self, share: float | None, rate: float, seconds_left: float | None) -> None:
        message = with_metric_prefix(self._done) if share is None else f"{share:4.0%}"
        message += f" at {with_metric_prefix(rate)}/s" if rate >= _MIN_RATE else ""
        self._print(message + ("" if seconds_left is None else f", {_duration(seconds_left)} left"))

    def _print(self, message: str) -> None:
        note = f" · {self._note}" if self._note else ""
        sys.stderr.write(f"{self._description}: {message}{note}\n")
        sys.stderr.flush()


class StatusProgress(_PacedProgress):
    """Progress that services of the registry show too, see `models.training_status`.

    Args:
        console: further receiver.
        folder: work folder of the registry.
        name: name of the model.
    """

    _interval_s = 5.0  # a file's write waits for the disk, and services look as often

    def __init__(self, console: Progress, folder: Path, name: str) -> None:
        self._console, self._folder, self._name = console, folder, name

    @override
    def start(self, description: str, total: float | None) -> None:
        super().start(description, total)
        self._console.start(description, total)
        self._show(None, 0.0, None)

    @override
    def advance(self, amount: float = 1, note: str = "") -> None:
        super().advance(amount, note)
        self._console.advance(amount, note)

    @override
    def finish(self) -> None:
        self._console.finish()

    @override
    def _show(self, share: float | None, rate: float, seconds_left: float | None) -> None:
        write_status(self._folder, TrainingStatus(self._name, self._description, share, seconds_left))


def console_progress() -> Progress:
    """Return a bar if standard error is the terminal of this foreground process, else a line logger."""
    try:
        is_shown = sys.stderr.isatty() and os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except OSError:  # another session's terminal
        is_shown = False
    return TerminalProgress() if is_shown else LogProgress()


@contextmanager
def shown_progress(folder: Path, name: str) -> Iterator[Progress]:
    """Yield progress for the console and for services of a registry, of which `folder` is the work folder."""
    try:
        yield StatusProgress(console_progress(), folder, name)
    finally:
        remove_status(folder, name)


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


class Terminated(SystemExit):
    """Exit by SIGTERM that unwinds the stack and runs all cleanup.

    Args:
        unsaved: why the run was not saved; empty if it was or there is none.
    """

    def __init__(self, unsaved: str = "") -> None:
        super().__init__(EXIT_TERMINATED)
        self.unsaved = unsaved


class Interruption:
    """Requests to end a run.

    Attributes:
        requested: True after Ctrl-C; a second one interrupts immediately, as usual.
        terminated: True after SIGTERM; a second one ends the process immediately.
    """

    requested = False
    terminated = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """Record Ctrl-C."""
        if self.requested:
            signal.default_int_handler(number, frame)
        self.requested = True

    def terminate(self, _number: int, _frame: FrameType | None) -> None:
        """Record SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.terminated = True


@contextmanager
def catch_interruption() -> Iterator[Interruption]:
    """Record Ctrl-C inside the block, and SIGTERM inside an `exit_on_sigterm` block.

    Signals with another handler, and all outside the main thread, are unchanged.
    """
    interruption = Interruption()
    with (
        _signal_handler(signal.SIGINT, interruption.request, instead_of=signal.default_int_handler),
        _signal_handler(signal.SIGTERM, interruption.terminate, instead_of=_raise_terminated),
    ):
        yield interruption


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise `Terminated` inside the block; else process 1 of a container ignores it.

    An error of a library that it interrupted, such as DuckDB, also becomes `Terminated`.
    """
    with _signal_handler(signal.SIGTERM, _raise_terminated, instead_of=signal.SIG_DFL):
        handler = signal.getsignal(signal.SIGTERM)
        try:
            yield
        except DomainError:
            raise
        except Exception as error:
            if handler == _raise_terminated and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                raise Terminated from error
            raise


def _raise_terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    # a second signal ends the process immediately
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


@contextmanager
def _signal_handler(
    number: signal.Signals, handler: Callable[..., Any], *, instead_of: object
) -> Iterator[None]:
    """Handle a signal inside the block, if its handler is `instead_of`."""
    before = signal.getsignal(number)
    if before != instead_of or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        if signal.getsignal(number) == handler:
            signal.signal(number, before)
