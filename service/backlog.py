"""Answers that their clients are slow to take: for how long they are kept, and how much memory they may have.

What cannot be sent lies in this process until the client reads on. Nothing else would ever end that: the connection is
sound, and the request has been answered.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from dataclasses import dataclass

_LINGER_RESET = struct.pack("ii", 1, 0)
"""Linger for no time: closing resets the connection."""


@dataclass(slots=True)
class _SlowConnection:
    """A connection whose client does not keep up.

    Attributes:
        left_bytes: that it had not taken at the last look.
        timer: of the next.
    """

    left_bytes: int
    timer: asyncio.TimerHandle


class SlowClients:
    """Connections with something unsent, oldest first. Belongs to the event loop.

    Args:
        timeout_s: a client that takes nothing for so long is cut off.
        max_bytes: of all of them together; past it those go that have been slow for longest.
    """

    def __init__(self, *, timeout_s: float, max_bytes: int) -> None:
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._slow: dict[asyncio.Transport, _SlowConnection] = {}

    def add(self, transport: asyncio.Transport) -> None:
        """Watch a connection until it is discarded, or nothing is taken from it."""
        if transport not in self._slow:
            self._slow[transport] = _SlowConnection(_unsent_bytes(transport), self._timer(transport))
            self._enforce_limit()

    def discard(self, transport: asyncio.Transport) -> None:
        """Its client keeps up again, or has gone."""
        if (slow := self._slow.pop(transport, None)) is not None:
            slow.timer.cancel()

    def _timer(self, transport: asyncio.Transport) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._timeout_s, self._check_progress, transport)

    def _check_progress(self, transport: asyncio.Transport) -> None:
        left_bytes, slow = _unsent_bytes(transport), self._slow[transport]
        if left_bytes >= slow.left_bytes:
            self._cut_off(transport)
        else:
            slow.left_bytes, slow.timer = left_bytes, self._timer(transport)

    def _enforce_limit(self) -> None:
        sizes = {transport: transport.get_write_buffer_size() for transport in self._slow}
        excess = sum(sizes.values()) - self._max_bytes
        for transport, size in [*sizes.items()][:-1]:
            if excess <= 0:
                break
            self._cut_off(transport)
            excess -= size

    def _cut_off(self, transport: asyncio.Transport) -> None:
        self.discard(transport)
        with contextlib.suppress(OSError):  # else the system would go on offering what it has of the answer
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        transport.abort()


def _unsent_bytes(transport: asyncio.Transport) -> int:
    """What the client's side has not taken: here, and in the system, which tells us of room in large steps only."""
    here = transport.get_write_buffer_size()
    try:
        queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # it has just been closed
        return here
    return here + int(struct.unpack("i", queued)[0])
