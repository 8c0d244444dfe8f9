"""Signals as something to wait for, for a process without an event loop."""

import contextlib
import select
import signal
import socket
from collections.abc import Iterable, Iterator


class SignalQueue:
    """While it is open, signals of some kinds wait to be asked for.

    Args:
        kinds: which.
    """

    def __init__(self, kinds: Iterable[signal.Signals]) -> None:
        self._kinds = frozenset(kinds)
        self._reading, self._writing = socket.socketpair()
        self._reading.settimeout(0)
        self._writing.settimeout(0)
        self._before = {kind: signal.signal(kind, lambda *_: None) for kind in self._kinds}
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)

    def wait(self, timeout_s: float | None) -> list[int]:
        """Signals that have come, in order; none if the time is over."""
        if not select.select([self._reading], [], [], timeout_s)[0]:
            return []
        with contextlib.suppress(BlockingIOError):
            return list(self._reading.recv(4096))
        return []

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """While the block runs, none arrives: a child that is forked there would write its own into our pipe."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._kinds)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """Let signals do what they did before."""
        signal.set_wakeup_fd(-1)
        for kind, handler in self._before.items():
            signal.signal(kind, handler)
        self._reading.close()
        self._writing.close()
