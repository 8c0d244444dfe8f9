"""Handling of Ctrl-C and SIGTERM in training commands.

Signals act between two updates, so saved states are complete. Ctrl-C ends the training;
the model is evaluated and published. SIGTERM, which orchestrators send, only saves the state:
time may be short, and a half-trained model must not be served because a machine is drained.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from models.errors import LanguageModelError

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a command ended by SIGTERM: 143, as without a handler."""


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
        except LanguageModelError:
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
