"""Ctrl-C and SIGTERM between two updates instead of amid one, so that what is saved is whole.

Ctrl-C ends a training, which is then evaluated and published. SIGTERM, as an orchestrator sends it to a container that
has to go, only saves: there may be no time for more, and a half-trained model must not be served because a machine
is serviced.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from models.errors import LanguageModelError

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a command that SIGTERM ended: 143, as of one that does not handle it."""


class Terminated(SystemExit):
    """SIGTERM came; leads out of the program, cleaning up on the way.

    Args:
        unsaved: why the run could not be saved; empty where it was, or there was none.
    """

    def __init__(self, unsaved: str = "") -> None:
        super().__init__(EXIT_TERMINATED)
        self.unsaved = unsaved


class Interruption:
    """Whether a run is to end.

    Attributes:
        requested: by one Ctrl-C; a second one interrupts at once, as usual.
        terminated: by SIGTERM; a second one ends the process at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self.terminated = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """Take note of Ctrl-C."""
        if self.requested:
            signal.default_int_handler(number, frame)
        self.requested = True

    def terminate(self, _number: int, _frame: FrameType | None) -> None:
        """Take note of SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.terminated = True


@contextmanager
def catch_interruption() -> Iterator[Interruption]:
    """Take note of Ctrl-C for a while, and of SIGTERM where a command is `exit_on_sigterm`.

    Of nothing where a signal is handled otherwise, or outside the main thread.
    """
    asked = Interruption()
    with (
        _signal_handler(signal.SIGINT, asked.request, instead_of=signal.default_int_handler),
        _signal_handler(signal.SIGTERM, asked.terminate, instead_of=_raise_terminated),
    ):
        yield asked


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` for a while; process 1 of a container would ignore it otherwise.

    Also where a library that was interrupted by it, as DuckDB is, raises an error of its own.
    """
    with _signal_handler(signal.SIGTERM, _raise_terminated, instead_of=signal.SIG_DFL):
        handler = signal.getsignal(signal.SIGTERM)
        try:
            yield
        except LanguageModelError:
            raise
        except Exception as error:
            if handler == _raise_terminated and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                raise Terminated from error
            raise


def _raise_terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
    raise Terminated


@contextmanager
def _signal_handler(
    number: signal.Signals, handler: Callable[..., Any], *, instead_of: object
) -> Iterator[None]:
    """Handle a signal for a while, if it is handled as it is said to be."""
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
