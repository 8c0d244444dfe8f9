"""Supervisor process: starts workers, restarts dead or hung ones, and stops all of them together.

It serves nothing itself, starts no thread and runs no event loop, so that it can fork at any time.
Models are inspected in a child process first, so that no thread of a library stays in this one, and
modules are imported before the fork, so that their pages are shared.

Shared folders are locked by `flock`, which ends with the last process however it dies; unlocked folders
are removed at the next start.
"""

import contextlib
import fcntl
import gc
import importlib
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
from service.workers.pool import SharedStatus, Watchdog, WorkerPool

_log = structlog.get_logger(__name__)
_PREFIX = "gramophone-"


class LockedFolder:
    """New locked folder, closed to other users; unlocked folders of its kind are removed first.

    Args:
        kind: suffix of its name, `gramophone-….kind`, which keeps it apart from other folders.
        parent: parent of the folder; None for the folder of temporary files.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        _remove_leftovers(parent, kind)
        while True:  # until no other process has removed the folder before it was locked
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
        """Remove the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def _remove_leftovers(parent: Path, kind: str) -> None:
    """Remove the unlocked folders of a kind that belong to this user."""
    for path in parent.glob(f"{_PREFIX}*.{kind}"):
        with contextlib.suppress(OSError):  # locked, of another user, or removed meanwhile
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                    _log.info("removed what a service that was killed had left", folder=str(path))
            finally:
                os.close(descriptor)


class SignalQueue:
    """Queue of signals, which replaces their handlers while it is open.

    Args:
        kinds: signals to queue.
    """

    def __init__(self, kinds: Iterable[signal.Signals]) -> None:
        self._kinds = frozenset(kinds)
        self._reading, self._writing = socket.socketpair()
        self._reading.settimeout(0)
        self._writing.settimeout(0)
        self._before = {kind: signal.signal(kind, lambda *_: None) for kind in self._kinds}
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)

    def wait(self, timeout_s: float | None) -> list[int]:
        """Return the signals received, in order; none after the timeout."""
        if not select.select([self._reading], [], [], timeout_s)[0]:
            return []
        with contextlib.suppress(BlockingIOError):
            return list(self._reading.recv(4096))
        return []

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Block the signals in the context, since a child forked there would write its own signals to this queue."""
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, self._kinds)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def close(self) -> None:
        """Restore the former signal handlers."""
        signal.set_wakeup_fd(-1)
        for kind, handler in self._before.items():
            signal.signal(kind, handler)
        self._reading.close()
        self._writing.close()


_STOP = (signal.SIGTERM, signal.SIGINT)
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
_MAX_NAME_LENGTH = 59
_MAX_FOLDER_BYTES = 98
"""Maximum of bytes of a folder's path: a socket's path may have 107, nine of which are for its name."""

_STABLE_S = 60.0
"""Lifetime after which a dead worker is restarted without delay."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of random name is made in it
_MIN_SHARED_MEMORY_BYTES = 1 << 30


@dataclass(slots=True)
class _WorkerSlot:
    """Slot of a worker and of its restarts.

    Attributes:
        pid: process of the worker; None while none runs.
        since_s: time of its start.
        due_s: time of the next start; None if none is due.
        delay_s: last delay of a restart.
    """

    pid: int | None = None
    since_s: float = 0.0
    due_s: float | None = None
    delay_s: float = 0.0


class Supervisor:
    """Supervisor of a number of workers, which restarts dead and hung ones.

    Args:
        size: number of workers.
        name: name of the service in handles of states; None for a random one.
        patience_s: maximum time of workers to stop.
        hang_timeout_s: time without a heartbeat after which a worker is killed and restarted; 0 for never.

    Raises:
        InvalidInputError: the name is too long for a worker's number after it.
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
        """Start the workers and supervise them.

        Args:
            listening: socket of their connections; closed here when they are to stop, as they close theirs, so
                that new clients are refused at once.

        Returns:
            The pool as seen by the worker, in each worker. In the calling process it does not return: that ends
            after all workers, by the signal that stopped them, or with the exit code of one that failed to start.

        Raises:
            InvalidInputError: the path of the folder of temporary files is too long.
        """
        self._listening = listening
        self._folder = _socket_folder()
        self._weights = LockedFolder("weights", _shared_memory_folder())
        self._lifeline, self._own_end = os.pipe()
        self._signals = SignalQueue((*_STOP, signal.SIGHUP, signal.SIGCHLD))
        for number in range(self._size):
            if pool := self._start(number):
                return pool
        _log.info("workers started", pids=[slot.pid for slot in self._slots])
        while any(slot.pid is not None for slot in self._slots) or self._stopping is None:
            for number in self._signals.wait(self._next_s()):
                self._on_signal(number)
            self._kill_hung()
            self._reap()
            if pool := self._start_due():
                return pool
        raise SystemExit(self._clean_up())

    # --- starting -----------------------------------------------------------------------------------

    def _start(self, number: int) -> WorkerPool | None:
        """Fork a worker; return its pool in the worker, None in this process."""
        slot = self._slots[number]
        with self._signals.blocked():
            pid = os.fork()
            if not pid:
                return self._as_worker(number)
        slot.pid, slot.since_s, slot.due_s = pid, time.monotonic(), None
        return None

    def _as_worker(self, number: int) -> WorkerPool:
        self._signals.close()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the handler that reloads the keys is installed
        # Ctrl-C reaches all processes, and the supervisor then sends SIGTERM
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
            is_restarted=self._slots[number].since_s > 0,
        )

    def _start_due(self) -> WorkerPool | None:
        now_s = time.monotonic()
        for number, slot in enumerate(self._slots):
            if slot.due_s is not None and now_s >= slot.due_s and self._stopping is None:
                try:
                    pool = self._start(number)
                except OSError as error:  # out of memory or processes; the other workers go on
                    slot.delay_s = _next_delay_s(slot.delay_s)
                    slot.due_s = now_s + slot.delay_s
                    _log.error(
                        "worker cannot be started", of=number, reason=str(error), again_in_s=slot.delay_s
                    )
                    continue
                if pool is not None:
                    return pool
                self._status.restarts[number] += 1
                _log.info("worker started again", of=number, pid=slot.pid)
        return None

    def _next_s(self) -> float | None:
        """Return the time until the next task; None if only a signal can cause one."""
        dues = [slot.due_s for slot in self._slots if slot.due_s is not None]
        if (check_s := self._watchdog.due_s) is not None:
            dues.append(check_s)
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
        """Have all workers finish their running work and stop."""
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
        """Kill hung workers; they are then restarted like dead ones."""
        for number in self._watchdog.hung_workers():
            pid = self._slots[number].pid
            if self._stopping is None and pid is not None:
                _log.error("worker hangs, and is killed", of=number, pid=pid)
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own

    def _reap(self) -> None:
        """Reap dead workers; kill those that did not stop in time."""
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
        if not self._status.composed[number]:
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

    def _clean_up(self) -> int:
        """Remove the folders, then end by the signal that stopped the service; without one, return the exit code."""
        for folder in (self._folder, self._weights):
            folder.remove()
        self._signals.close()
        if self._stopping:
            signal.signal(self._stopping, signal.SIG_DFL)
            signal.raise_signal(self._stopping)
        return self._exit_code


def _next_delay_s(delay_s: float) -> float:
    """Return the delay after a failed restart."""
    return min(_MAX_DELAY_S, max(_FIRST_DELAY_S, 2 * delay_s))


def _socket_folder() -> LockedFolder:
    """Make a folder closed to other users, with a path short enough for sockets in it."""
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
    """Return the folder of shared memory, or None if there is none with enough space for weights."""
    try:
        filesystem = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    is_large_enough = filesystem.f_bavail * filesystem.f_frsize >= _MIN_SHARED_MEMORY_BYTES
    return _SHARED_MEMORY if is_large_enough and os.access(_SHARED_MEMORY, os.W_OK) else None


_ALWAYS = ("models.ngram.model",)
_NEURAL = ("torch", "models.neural.model", "models.neural.int8", "models.cache.model", "models.mixture")
_WEIGHTS = ".safetensors"
_YES = 100
"""Exit code of a child whose probe is true; errors have lower ones."""


def has_networks(host: ModelHost) -> bool:
    """Return whether a model of a host is a neural network."""
    for model in host.models.values():
        if model.version is not None:
            with contextlib.suppress(LanguageModelError, OSError):  # the loading of the model will report it
                if any(name.endswith(_WEIGHTS) for name in host.registry.manifest(model.version).files):
                    return True
    return False


def preload(*, networks: bool) -> None:
    """Import what models need, and exclude it from garbage collection, which would write to shared pages.

    Args:
        networks: whether any model is a network.
    """
    for name in (*_ALWAYS, *_NEURAL) if networks else _ALWAYS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def probe_in_child(probe: Callable[[], bool]) -> bool:
    """Return the result of a probe in a child process, so that it leaves no threads in this process.

    Threads of a library for remote files, for instance, would be missing in workers forked later. If the probe
    raises, the child reports the error, and this process ends with the same exit code.
    """
    child = os.fork()
    if not child:
        os._exit(_YES if probe() else 0)  # skips exit handlers, which are the parent's
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in {0, _YES}:
        sys.exit(code if code > 0 else 1)
    return code == _YES
