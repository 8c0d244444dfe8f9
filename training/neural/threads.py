"""Number of torch's threads during a training on a CPU, by the cores that it gets.

Threads of one operation wait for each other, and spin meanwhile. If other programs
delay one of them, the others lose their time, too: on a busy machine, one thread can
read ten times as much text as two.
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
    """Return the seconds for which each thread was ready to run, but had no core.

    Empty except on Linux. They include the time without a core because of a quota.
    """
    waits = dict[str, float]()
    for file in _TASKS.glob("*/schedstat"):
        with suppress(OSError):  # the thread ended
            waits[file.parent.name] = int(file.read_text().split()[1]) / 1e9
    return waits


class CoreTuner:
    """Tuner of the number of torch's threads, by the time that updates take.

    In windows of two seconds, it compares the processor time of this process with the
    time for which its threads waited for a core. Below a share of 0.8 it tries half as
    many threads, and above it, twice as many, at most those at the beginning. It keeps
    the number that reads more tokens per second; after each vain attempt, it waits for
    twice as many windows. Nothing changes if the process gets its cores, or the user
    set OMP_NUM_THREADS.

    Args:
        on_cpu: measure and adapt; False for a training on a GPU.
        clock: monotonic clock in seconds.
        cpu_clock: processor time of all threads in seconds.
        waits: total seconds without a core, by thread; empty if unknown: then all time
            that is not processor time counts.

    Attributes:
        most: number of threads at the beginning.
        threads: current number of threads.
        shortage: cores of the last window, for the progress; empty if the process had
            as many as it wanted.
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
        # seconds, processor seconds and tokens
        self._window, self._totals = np.zeros(3), np.zeros(3)
        self._waited = waits()
        self._windows = self._lacking = 0
        # share of cores, threads and expected tokens per second of the window least disturbed
        self._best = (0.0, 0, 0.0)
        # during an attempt: threads and tokens per second before
        self._before: tuple[int, float] | None = None
        self._pause, self._left = 1, 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Adapt torch's threads inside the block, and restore them after it.

        On a busy machine, it begins with fewer.
        """
        if self._adapts:
            matrix, until = torch.ones(_PROBE_SIZE, _PROBE_SIZE), self._clock() + _PROBE_S
            self._waited = self._waits()
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
        self.shortage = f" on {cpu_s / seconds:.1f} of {self.most} cores" if share < _ENOUGH else ""
        self._windows += 1
        self._lacking += share < _ENOUGH or self.threads < self.most
        expected = speed / share * self.most / self.threads
        self._best = max(self._best, (round(share, 1), self.threads, expected))
        if self._adapts:
            self._adapt(speed, share)

    def facts(self) -> dict[str, float]:
        """Return tokens per second in updates, those expected of idle cores, and cores.

        Expected are the tokens per second of the least disturbed window, divided by the
        share of all cores that it had. That is too low if its threads spun, waiting for
        each other, and too high by the overhead of several threads if it had one. Empty
        before the first window.
        """
        if not self._windows:
            return {}
        seconds, cpu_s, tokens = self._totals.tolist()
        figures = {
            "tokens_per_second": tokens / seconds,
            "expected": self._best[-1],
            "cores": cpu_s / seconds,
        }
        return {name: float(f"{value:.3g}") for name, value in figures.items()} | {"threads": self.most}

    def note(self) -> str:
        """Describe a lack of cores in most windows; empty without one."""
        if 2 * self._lacking <= self._windows:
            return ""
        facts = self.facts()
        return (
            f"this process got {facts['cores']:g} of {self.most} cores (others use them, or a quota does): "
            f"{facts['tokens_per_second']:,.0f} tokens/s, about {facts['expected']:,.0f} expected of idle cores"
        )

    def _end_window(self) -> float:
        """Begin a window; return the share of the wanted time that the last one had."""
        waits, before = self._waits(), self._waited
        seconds, cpu_s, _ = self._window.tolist()
        waited = sum(max(total - before.get(thread, 0.0), 0.0) for thread, total in waits.items())
        if not waits:
            waited = max(self.threads * seconds - cpu_s, 0.0)
        self._window[:], self._waited = 0, waits
        return max(cpu_s, 1e-6) / max(cpu_s + waited, 1e-6)

    def _adapt(self, speed: float, share: float) -> None:
        """End an attempt, or begin one with half or twice the threads."""
        if self._before is not None:
            (threads, slower), self._before = self._before, None
            is_better = speed >= _MIN_GAIN * slower
            if not is_better:
                self._set(threads)
            self._left = self._pause = 1 if is_better else min(2 * self._pause, _MAX_PAUSE)
            return
        self._left -= 1
        wanted = self.threads // 2 if share < _ENOUGH else 2 * self.threads
        wanted = max(1, min(wanted, self.most))
        if self._left <= 0 and wanted != self.threads:
            self._before = self.threads, speed
            self._set(wanted)

    def _set(self, threads: int) -> None:
        self.threads = threads
        torch.set_num_threads(threads)
