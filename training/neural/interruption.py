"""Ctrl-C between two updates instead of amid one, so that what is saved is whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Whether the user wants the run to end.

    Attributes:
        asked: by one Ctrl-C; a second one interrupts at once, as usual.
    """

    def __init__(self) -> None:
        self.asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Take note of a signal."""
        if self.asked:
            signal.default_int_handler(number, frame)
        self.asked = True


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Take note of Ctrl-C for a while; of nothing where it is not handled as usual, or outside the main thread."""
    asked = Interruption()
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield asked
        return
    signal.signal(signal.SIGINT, asked.ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
