"""Supervisor process: starts workers, restarts dead or hung ones, and stops all of them together.

It serves nothing itself, starts no thread and runs no event loop, so that it can fork at any time.
Models are inspected in a child process before, so that no thread of a library stays in this one,
and modules are imported before the fork, so that their pages are shared.

The watchdog counts its own checks, not seconds: when the whole machine was suspended, no worker is
taken for hung. Shared folders are held by `flock`, which ends with the last process however it
dies; folders that no process holds are removed at the next start.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from models.errors import InvalidInputError, LanguageModelError
from service.engine.model_host import ModelHost
from service.workers.pool import HEARTBEAT_INTERVAL_S, SharedStatus, WorkerPool

_log = structlog.get_logger(__name__)
_PREFIX = "gramophone-"


class LockedFolder:
    """A new folder that nobody else's user may enter. The folders of its kind that were left over are removed first.

    Args:
        kind: what its name ends with, `gramophone-….kind`, so that nobody's own folder is taken for one.
        parent: where it is to be; None for the folder of temporary files.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        _remove_leftovers(parent, kind)
        while True:  # until nobody has swept it before it was held
            self.path = Path(tempfile.mkdtemp(f".{kind}", _PREFIX, parent))  # of mode 0700
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if self.path.exists():
                return
            os.close(self._descriptor)

    def remove(self) -> None:
        """Remove it, with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def _remove_leftovers(parent: Path, kind: str) -> None:
    """Remove the folders of a kind that are ours and that nobody holds."""
    for path in parent.glob(f"{_PREFIX}*.{kind}"):
        with contextlib.suppress(OSError):  # held, or another user's, or gone by now
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                    _log.info("removed what a service that was killed had left", folder=str(path))
            finally:
                os.close(descriptor)


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
        """Restore the former signal handlers."""
        signal.set_wakeup_fd(-1)
        for kind, handler in self._before.items():
            signal.signal(kind, handler)
        self._reading.close()
        self._writing.close()


_MAX_MISSED_HEARTBEATS = 5


class Watchdog:
    """Finds workers that have said nothing for some time.

    It counts its own looks, not seconds: when the whole machine was held up, or all processes of a container were, the
    supervisor could not look either, and takes nobody's silence amiss.

    Args:
        board: where workers say that they are alive.
        size: how many there are.
        patience_s: how long one may be silent; 0 is for ever. Five beats it always may.
        clock: seconds, monotonic.
    """

    def __init__(
        self, board: SharedStatus, size: int, *, patience_s: float, clock: Callable[[], float]
    ) -> None:
        self._status = board
        self._every_s = max(patience_s / _MAX_MISSED_HEARTBEATS, HEARTBEAT_INTERVAL_S) if patience_s else 0.0
        self._clock = clock
        self._last_heartbeats = [0] * size
        self._missed = [0] * size  # that found nothing new
        self._due_s = clock() + self._every_s

    @property
    def due_s(self) -> float | None:
        """Time of the next check; None if none is due."""
        return self._due_s if self._every_s else None

    def hung_workers(self) -> list[int]:
        """Look, if it is time to; the workers that have been silent for too long, each told once.

        One that has never spoken is being started, which may take its time.
        """
        if not self._every_s or self._clock() < self._due_s:
            return []
        self._due_s = self._clock() + self._every_s
        found = []
        for worker, count in enumerate(self._status.heartbeats):
            is_silent = count > 0 and count == self._last_heartbeats[worker]
            self._missed[worker] = self._missed[worker] + 1 if is_silent else 0
            self._last_heartbeats[worker] = count
            if self._missed[worker] == _MAX_MISSED_HEARTBEATS:
                found.append(worker)
        return found


_STOP = (signal.SIGTERM, signal.SIGINT)
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
_MAX_NAME_LENGTH = 59
_MAX_FOLDER_BYTES = 98
"""A socket's path has 107 bytes at most, nine of which its name may take."""

_STABLE_S = 60.0
"""A worker that has lived so long is started again at once when it dies."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of random name is made in it
_MIN_SHARED_MEMORY_BYTES = 1 << 30


@dataclass(slots=True)
class _WorkerSlot:
    """A worker's place: who holds it, and since when.

    Attributes:
        pid: of the worker, None between two.
        since_s: when it was started.
        due_s: when the next is to be started.
        delay_s: how long that was put off last.
        starts: how many there have been.
    """

    pid: int | None = None
    since_s: float = 0.0
    due_s: float | None = None
    delay_s: float = 0.0
    starts: int = 0


class Supervisor:
    """Keeps a number of workers alive.

    Args:
        size: how many.
        name: of the service in handles of states; None makes one up.
        patience_s: how long workers may take to stop.
        hang_timeout_s: after so long without a sign of life a worker is killed, and another started; 0 is never.

    Raises:
        InvalidInputError: the name leaves no room for a worker's number.
    """

    def __init__(
        self, size: int, *, name: str | None, patience_s: float, hang_timeout_s: float = 0.0
    ) -> None:
        self._size = size
        self._name = name or secrets.token_hex(4)
        if len(self._name) > _MAX_NAME_LENGTH:
            raise InvalidInputError(
                f"GRAMOPHONE_PROCESS_NAME has {len(self._name)} characters; with several workers {_MAX_NAME_LENGTH} "
                "are the most, as each adds its number",
                parameter="GRAMOPHONE_PROCESS_NAME",
            )
        self._patience_s = patience_s
        self._status = SharedStatus(size)
        self._watchdog = Watchdog(self._status, size, patience_s=hang_timeout_s, clock=time.monotonic)
        self._slots = [_WorkerSlot() for _ in range(size)]
        self._stopping: int | None = None
        self._kill_s: float | None = None
        self._exit_code = 0

    def run(self, listening: socket.socket) -> WorkerPool:
        """Start the workers and see to them.

        Args:
            listening: what they take connections from; closed here when they are to stop, as they close theirs, so
                that whoever still comes is refused at once.

        Returns:
            In every worker, which one it is. In the process that called it does not return: that ends when all
            workers have, by the signal that stopped them, or with the exit code of one that could not be started.

        Raises:
            InvalidInputError: the folder of temporary files has too long a path.
        """
        self._listening = listening
        self._folder = _socket_folder()
        self._weights = LockedFolder("weights", _shared_memory_folder())
        self._lifeline, self._own_end = os.pipe()
        self._signals = SignalQueue((*_STOP, signal.SIGHUP, signal.SIGCHLD))
        for number in range(self._size):
            if crew := self._start(number):
                return crew
        _log.info("workers started", pids=[slot.pid for slot in self._slots])
        while any(slot.pid is not None for slot in self._slots) or self._stopping is None:
            for number in self._signals.wait(self._next_s()):
                self._on_signal(number)
            self._kill_hung()
            self._reap()
            if crew := self._start_due():
                return crew
        raise SystemExit(self._tidy_up())

    # --- starting -----------------------------------------------------------------------------------

    def _start(self, number: int) -> WorkerPool | None:
        """Fork a worker; in that, which one it is."""
        slot = self._slots[number]
        with self._signals.blocked():
            pid = os.fork()
            if not pid:
                return self._as_worker(number)
        slot.pid, slot.since_s, slot.due_s = pid, time.monotonic(), None
        slot.starts += 1
        return None

    def _as_worker(self, number: int) -> WorkerPool:
        self._signals.close()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are keys to read again
        # Ctrl-C reaches all of us, and the supervisor tells us to stop
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(self._own_end)
        return WorkerPool(
            number=number,
            size=self._size,
            name=self._name,
            status=self._status,
            folder=self._folder.path,
            weights=self._weights.path,
            lifeline=self._lifeline,
            is_restarted=self._slots[number].starts > 0,
        )

    def _start_due(self) -> WorkerPool | None:
        now_s = time.monotonic()
        for number, slot in enumerate(self._slots):
            if slot.due_s is not None and now_s >= slot.due_s and self._stopping is None:
                try:
                    crew = self._start(number)
                except OSError as error:  # no memory or no process is left; the others go on
                    slot.delay_s = _next_delay_s(slot.delay_s)
                    slot.due_s = now_s + slot.delay_s
                    _log.error(
                        "worker cannot be started", of=number, reason=str(error), again_in_s=slot.delay_s
                    )
                    continue
                if crew is not None:
                    return crew
                self._status.mark_restarted(number)
                _log.info("worker started again", of=number, pid=slot.pid)
        return None

    def _next_s(self) -> float | None:
        """Return the time until the next task; None if only a signal can bring about one."""
        dues = [slot.due_s for slot in self._slots if slot.due_s is not None]
        if (look_s := self._watchdog.due_s) is not None:
            dues.append(look_s)
        if self._stopping is not None:
            dues = [] if self._kill_s is None else [self._kill_s]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    # --- stopping -----------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._signal_all(signal.SIGHUP)
        elif number in _STOP and self._stopping is None:
            self._stop(number)
        elif number in _STOP:
            self._signal_all(signal.SIGKILL)

    def _stop(self, number: int) -> None:
        """Have all workers finish what is under way."""
        self._stopping = number
        self._listening.close()
        self._kill_s = time.monotonic() + self._patience_s
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, kind: signal.Signals) -> None:
        for slot in self._slots:
            if slot.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(slot.pid, kind)

    def _kill_hung(self) -> None:
        """Kill who is there and does nothing; the next one takes its place as that of any that has died."""
        for number in self._watchdog.hung_workers():
            pid = self._slots[number].pid
            if self._stopping is None and pid is not None:
                _log.error("worker hangs, and is killed", of=number, pid=pid)
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own

    def _reap(self) -> None:
        """See who has died; kill who should have."""
        for number, slot in enumerate(self._slots):
            if slot.pid is not None:
                pid, status = os.waitpid(slot.pid, os.WNOHANG)
                if pid:
                    self._died(number, os.waitstatus_to_exitcode(status))
        if self._kill_s is not None and time.monotonic() >= self._kill_s:
            _log.error("workers did not stop in time", seconds=self._patience_s)
            self._kill_s = None
            self._signal_all(signal.SIGKILL)

    def _died(self, number: int, code: int) -> None:
        slot = self._slots[number]
        pid, slot.pid = slot.pid, None
        self._status.mark_stopped(number)
        if self._stopping is not None:
            return
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if not self._status.was_composed(number):
            _log.error("worker ended while it started, and so does the service", of=number, pid=pid, how=how)
            self._exit_code = code if code > 0 else 1
            self._stop(0)
            return
        lived_s = time.monotonic() - slot.since_s
        if lived_s >= _STABLE_S:
            slot.delay_s = 0.0
        slot.due_s = time.monotonic() + slot.delay_s
        _log.error(
            "worker died",
            of=number,
            pid=pid,
            how=how,
            lived_s=round(lived_s, 1),
            again_in_s=slot.delay_s,
        )
        slot.delay_s = _next_delay_s(slot.delay_s)

    def _tidy_up(self) -> int:
        """End by the signal that stopped all, as a lone process would; else the exit code to end with."""
        for folder in (self._folder, self._weights):
            folder.remove()
        self._signals.close()
        if self._stopping:
            signal.signal(self._stopping, signal.SIG_DFL)
            signal.raise_signal(self._stopping)
        return self._exit_code


def _next_delay_s(delay_s: float) -> float:
    """The next delay after one that was not long enough."""
    return min(_MAX_DELAY_S, max(_FIRST_DELAY_S, 2 * delay_s))


def _socket_folder() -> LockedFolder:
    """A folder that nobody else can enter, with a path that leaves room for sockets' names."""
    folder = LockedFolder("sockets")
    if len(os.fsencode(folder.path)) > _MAX_FOLDER_BYTES:
        folder.remove()
        raise InvalidInputError(
            f"the folder of temporary files, {folder.path.parent}, has a path too long for sockets in it: "
            "set TMPDIR to a shorter one",
            parameter="TMPDIR",
        )
    return folder


def _shared_memory_folder() -> Path | None:
    """Memory, if there is a folder in it with room for weights; else None, for the folder of temporary files."""
    try:
        filesystem = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    is_roomy = filesystem.f_bavail * filesystem.f_frsize >= _MIN_SHARED_MEMORY_BYTES
    return _SHARED_MEMORY if is_roomy and os.access(_SHARED_MEMORY, os.W_OK) else None


_ALWAYS = ("models.ngram.model",)
_NEURAL = ("torch", "models.neural.model", "models.neural.int8", "models.cache.model", "models.mixture")
_WEIGHTS = ".safetensors"


def modules_for(host: ModelHost) -> list[str]:
    """Names of the modules that the models of a host are made by; torch only where there is a network."""
    for model in host.models.values():
        if model.version is not None:
            with contextlib.suppress(LanguageModelError, OSError):  # whoever loads it will tell
                if any(name.endswith(_WEIGHTS) for name in host.registry.manifest(model.version).files):
                    return [*_ALWAYS, *_NEURAL]
    return [*_ALWAYS]


def preload(modules: Iterable[str]) -> None:
    """Import modules, and keep the collector's notes out of the pages that are to be shared."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def probe_in_child(look: Callable[[], list[str]]) -> list[str]:
    """Run a probe in a child process, so that nothing of it stays in this process.

    Threads that it starts, of a library for remote files say, would not be there in workers that are forked later.
    Should it raise, the child tells, as this process would, and this process ends with the same exit code.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        found = look()
        with os.fdopen(writing, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)  # not by the ways out of a program that goes on in its parent
    os.close(writing)
    with os.fdopen(reading) as pipe:
        output = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        sys.exit(code if code > 0 else 1)
    found_there: list[str] = json.loads(output)
    return found_there
