"""Number of torch's threads in a training on a CPU, adapted to the cores that it gets.

Threads of an operation spin while they wait for each other. On a busy machine,
one thread can read five times as much text as two.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import environ  # noqa: TID251 - of OpenMP, whose threads these are
from pathlib import Path

import numpy as np
import torch

_WINDOW_S = 2.0
_PROBE_S, _PROBE_SIZE = 0.2, 512
_ENOUGH, _MIN_GAIN = 0.8, 1.05
_MAX_PAUSE = 64  # windows

_TASKS = Path("/proc/self/task")


def read_waits() -> dict[str, float]:
    """Return each thread's seconds in which it was ready but had no core; empty except on Linux."""
    waits = dict[str, float]()
    for file in _TASKS.glob("*/schedstat"):
        with suppress(OSError):  # the thread ended
            waits[file.parent.name] = int(file.read_text().split()[1]) / 1e9
    return waits


class ThreadTuner:
    """Tuner of the number of torch's threads, by the time that updates take.

    In windows of two seconds, it compares the process's time on cores with its threads'
    time without. If the process had less than 0.8 of both, it tries half the threads, else
    twice, up to the first number, and keeps what reads more tokens per second. After
    each vain attempt, it waits for twice as many windows. A process that
    gets its cores, and one with OMP_NUM_THREADS, keep their threads.

    Args:
        on_cpu: False, for a GPU, measures and changes nothing.
        clock: monotonic clock in seconds.
        cpu_clock: processor seconds of all threads.
        waits: like `read_waits`; if empty, all but processor time counts.

    Attributes:
        most: threads at the beginning.
        threads: threads now.
        shortage: cores of the last window; empty if enough.
    """

    def __init__(
        self,
        on_cpu: bool = True,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        waits: Callable[[], Mapping[str, float]] = read_waits,
    ) -> None:
        self._clock, self._cpu_clock, self._waits = clock, cpu_clock, waits
        self.most = self.threads = torch.get_num_threads()
        self.shortage = ""
        self._window_s = _WINDOW_S if on_cpu else math.inf
        self._adapts = on_cpu and self.most > 1 and not environ.get("OMP_NUM_THREADS")
        # seconds, processor seconds, tokens
        self._window = np.zeros(3)
        self._totals = np.zeros(3)
        self._waited = waits()
        self._cpu_began = cpu_clock()
        self._windows = self._lacking = 0
        # of the least disturbed window: share, threads, expected speed
        self._best = (0.0, 0, 0.0)
        # threads and speed before an attempt
        self._before: tuple[int, float] | None = None
        self._pause = 1
        self._left = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Adapt torch's threads inside the block; on a busy machine, begin with fewer."""
        if self._adapts:
            matrix = torch.ones(_PROBE_SIZE, _PROBE_SIZE)
            until = self._clock() + _PROBE_S
            self._end_window()
            with self.measured():
                while self._clock() < until:
                    torch.mm(matrix, matrix)
            if (share := self._end_window()) < _ENOUGH:
                self._set(max(1, int(share * self.most)))
        try:
            yield
        finally:
            if self.threads != self.most:
                self._set(self.most)

    @contextmanager
    def measured(self, tokens: int = 0) -> Iterator[None]:
        """Measure the block: an update on a number of tokens."""
        started, cpu_started = self._clock(), self._cpu_clock()
        yield
        self._window += (self._clock() - started, self._cpu_clock() - cpu_started, tokens)
        seconds, cpu_s, read = self._window.tolist()
        if seconds < self._window_s:
            return
        self._totals += self._window
        speed, share = read / seconds, self._end_window()
        self.shortage = ""
        if share < _ENOUGH:
            self.shortage = f" on {cpu_s / seconds:.1f} of {self.most} cores"
        self._windows += 1
        self._lacking += share < _ENOUGH or self.threads < self.most
        expected = speed / share * self.most / self.threads
        self._best = max(self._best, (round(share, 1), self.threads, expected))
        if self._adapts:
            self._adapt(speed, share)

    def facts(self) -> dict[str, float]:
        """Return tokens per second in updates, reached and expected, cores used and all.

        Expected is the speed of the least disturbed window, divided by its share of
        all cores: too low if its threads spun, too high by the overhead of
        several if it had one. Empty before the first window.
        """
        if not self._windows:
            return {}
        seconds, cpu_s, tokens = self._totals.tolist()
        figures = {
            "tokens_per_second": tokens / seconds,
            "expected": self._best[-1],
            "cores": cpu_s / seconds,
            "threads": self.most,
        }
        return {name: float(f"{value:.3g}") for name, value in figures.items()}

    def note(self) -> str:
        """Describe a lack of cores in most windows; empty without one."""
        if 2 * self._lacking <= self._windows:
            return ""
        facts = self.facts()
        reached, expected = facts["tokens_per_second"], facts["expected"]
        return (
            f"this process got {facts['cores']:.2g} of {self.most} cores "
            "(others use them, or a quota does): "
            f"{reached:,.0f} tokens/s in updates, about {expected:,.0f} expected of idle cores"
        )

    def _end_window(self) -> float:
        """Begin a window; return the share of the last that the process had cores."""
        waits, before = self._waits(), self._waited
        cpu_now = self._cpu_clock()
        # with the time between updates, as the waits
        cpu_s = cpu_now - self._cpu_began
        waited = sum(now - before.get(thread, 0.0) for thread, now in waits.items())
        if not waits:
            seconds, cpu_s, _ = self._window.tolist()
            waited = self.threads * seconds - cpu_s
        self._window[:] = 0
        self._waited = waits
        self._cpu_began = cpu_now
        cpu_s = max(cpu_s, 1e-6)
        return cpu_s / (cpu_s + max(waited, 0.0))

    def _adapt(self, speed: float, share: float) -> None:
        """End an attempt, or begin one with half or twice the threads."""
        if self._before is not None:
            (threads, slower), self._before = self._before, None
            if speed >= _MIN_GAIN * slower:
                self._pause = 1
            else:
                self._set(threads)
                self._pause = min(2 * self._pause, _MAX_PAUSE)
            self._left = self._pause
            return
        self._left -= 1
        wanted = 2 * self.threads
        if share < _ENOUGH:
            wanted = self.threads // 2
        wanted = max(1, min(wanted, self.most))
        if self._left <= 0 and wanted != self.threads:
            self._before = self.threads, speed
            self._set(wanted)

    def _set(self, threads: int) -> None:
        self.threads = threads
        torch.set_num_threads(threads)
