"""Sleeping to some ten microseconds: an event loop's own timers count whole milliseconds."""

import asyncio
import ctypes
import os
import time
from types import TracebackType
from typing import Self

_CLOCK_MONOTONIC = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_TimerSpec = ctypes.c_long * 4
"""Seconds and nanoseconds of the interval, which is none, then those until the timer goes off."""


class PreciseClock:
    """One sleeper at a time, woken by a timer of Linux's; elsewhere by the event loop, a millisecond late.

    A thread that sleeps and wakes the loop was tried: it is late by 0.1 ms instead of 0.03, and where the machine is
    busy it is kept waiting twice. Python has these timers itself from 3.13 on.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        if hasattr(_LIBC, "timerfd_create"):
            file = _LIBC.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if file < 0:
                raise OSError(ctypes.get_errno(), "no timer can be had")
            self._file = file
            asyncio.get_running_loop().add_reader(file, self._wake)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)

    async def sleep_until(self, time_s: float) -> None:
        """Return at that time of `time.perf_counter`; if it has passed, after others had their turn."""
        left_s = time_s - time.perf_counter()
        if left_s <= 0 or self._file is None:
            await asyncio.sleep(max(left_s, 0))
            return
        seconds, fraction_s = divmod(left_s, 1)
        self._waiter = asyncio.get_running_loop().create_future()
        spec = _TimerSpec(0, 0, int(seconds), max(int(fraction_s * 1e9), 1))
        _LIBC.timerfd_settime(self._file, 0, ctypes.byref(spec), None)
        await self._waiter

    def _wake(self) -> None:
        if self._file is None or self._waiter is None:
            return
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set anew meanwhile
            return
        if not self._waiter.done():
            self._waiter.set_result(None)
