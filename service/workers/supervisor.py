"""Supervisor process: starts workers, restarts dead or hung ones, and stops all of them together.

The supervisor serves no requests, starts no threads and runs no event loop, so it can fork at any
time. Models are first inspected in a child process, so no library leaves a thread in this one.
Modules are imported before the fork, so workers share their pages.

Shared folders are locked with `flock`; the lock ends with the last process, even after a crash. The
next start removes unlocked folders.
"""

import contextlib
import gc
import importlib
import math
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path

import structlog

from models.checkpoint.folders import locked_folder
from models.errors import DomainError, InputError
from service.api_keys import file_stamp
from service.hosting.model_host import ModelHost
from service.workers.pool import HEARTBEAT_INTERVAL_S, SharedStatus, WorkerPool

_PREFIX = "gramophone-"
_STOP = (signal.SIGTERM, signal.SIGINT)
_AWAITED = (*_STOP, signal.SIGHUP, signal.SIGCHLD)
"""Signals that the supervisor blocks and waits for."""

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
_MAX_NAME_LENGTH = 59
_MAX_FOLDER_BYTES = 98
"""Maximum bytes of a folder's path: a socket's may have 107, nine for its name."""

_MAX_MISSED_HEARTBEATS = 5
_STABLE_S = 60.0
"""Lifetime after which a dead worker is restarted without delay."""

_MAX_WAIT_S = 3600.0
"""Maximum time until the next look for due tasks if no signal arrives."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of random name is made in it
_MIN_SHARED_MEMORY_BYTES = 1 << 30
_ALWAYS = ("models.ngram.model",)
_NEURAL = ("models.neural.int8.model", "models.cache.model", "models.mixture")
_FLOAT32 = ("torch", "models.neural.model")
_WEIGHTS = ".safetensors"
_YES = 100
"""Exit code of a child whose probe is true; errors have lower codes."""

_log = structlog.get_logger(__name__)


class LockedFolder:
    """New locked folder, closed to other users; unlocked ones of its kind and of this user are removed first.

    Args:
        kind: suffix of the name, `gramophone-….kind`.
        parent: parent of the folder; None for the folder of temporary files.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        for path in parent.glob(f"{_PREFIX}*.{kind}"):
            with contextlib.suppress(OSError):  # locked, another user's, a link, or gone
                if path.stat(follow_symlinks=False).st_uid == os.getuid():
                    with locked_folder(path, wait=False):
                        shutil.rmtree(path)
                    _log.info("removed the folder of a killed service", folder=str(path))
        self._lock = contextlib.ExitStack()
        while True:  # another process may remove the folder before it is locked
            self.path = Path(tempfile.mkdtemp(f".{kind}", _PREFIX, parent))  # of mode 0700
            with contextlib.suppress(FileNotFoundError):
                self._lock.enter_context(locked_folder(self.path))
                if self.path.exists():
                    return

    def remove(self) -> None:
        """Remove the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


@dataclass(slots=True)
class _WorkerSlot:
    """Process of a worker and schedule of its restarts.

    Attributes:
        pid: id of the worker's process; None while no process runs.
        since_s: time of its start.
        due_s: time of the next start; None if none is due.
        delay_s: last delay of a restart.
        heartbeats: its heartbeats at the last check.
        missed: consecutive checks without a new heartbeat.
    """

    pid: int | None = None
    since_s: float = 0.0
    due_s: float | None = None
    delay_s: float = 0.0
    heartbeats: int = 0
    missed: int = 0


class Supervisor:
    """Supervisor of workers, which restarts dead and hung ones.

    Args:
        size: number of workers.
        name: name of the service in state handles; None for a random name.
        patience_s: maximum time for workers to stop.
        hang_timeout_s: time without a heartbeat after which a worker is killed and restarted, at least
            five of their intervals; 0 for never.

    Raises:
        InputError: the name is too long to append a worker's number.
    """

    def __init__(
        self, size: int, *, name: str | None, patience_s: float, hang_timeout_s: float = 0.0
    ) -> None:
        self._size = size
        self._name = name or secrets.token_hex(4)
        if len(self._name) > _MAX_NAME_LENGTH:
            raise InputError.of(
                "GRAMOPHONE_PROCESS_NAME",
                f"has {len(self._name)} characters; with several workers the maximum is "
                f"{_MAX_NAME_LENGTH}, since each appends its number",
            )
        self._patience_s = patience_s
        self._status = SharedStatus(size)
        interval_s = max(hang_timeout_s / _MAX_MISSED_HEARTBEATS, HEARTBEAT_INTERVAL_S)
        self._check_interval_s = interval_s if hang_timeout_s else math.inf
        self._check_s = time.monotonic() + self._check_interval_s
        self._slots = [_WorkerSlot() for _ in range(size)]
        # changes as pip replaces the program's files, from which forked workers would import more
        self._program = file_stamp(Path(__file__))
        self._stopping: int | None = None
        self._kill_s: float | None = None
        self._exit_code = 0

    def run(self, listening: socket.socket) -> WorkerPool:
        """Start the workers and supervise them.

        Args:
            listening: shared listening socket, which supervisor and workers close when they stop, so new
                connections are refused at once.

        Returns:
            The worker pool, in each worker. The supervisor does not return: it ends after all workers, by the signal
            that stopped them, or with the exit code of a worker that failed to start.

        Raises:
            InputError: the path of the temporary folder is too long.
        """
        self._listening = listening
        self._folder = _socket_folder()
        self._weights = LockedFolder("weights", _shared_memory_folder())
        self._lifeline, self._own_end = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        for number in range(self._size):
            if pool := self._start(number):
                return pool
        _log.info("workers started", pids=[slot.pid for slot in self._slots])
        while any(slot.pid is not None for slot in self._slots) or self._stopping is None:
            received = signal.sigtimedwait(_AWAITED, self._next_s())
            caught = 0 if received is None else received.si_signo
            if caught == signal.SIGHUP:
                self._signal_all(signal.SIGHUP)
            elif caught in _STOP and self._stopping is None:
                self._stop(caught)
            elif caught in _STOP:
                self._signal_all(signal.SIGKILL)
            self._kill_hung()
            self._reap()
            if pool := self._start_due():
                return pool
        raise SystemExit(self._clean_up())

    def _start(self, number: int) -> WorkerPool | None:
        """Fork a worker; return its pool in the worker, None in the supervisor."""
        slot = self._slots[number]
        is_restarted = slot.since_s > 0
        if pid := os.fork():
            slot.pid, slot.since_s, slot.due_s = pid, time.monotonic(), None
            return None
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the handler that reloads keys
        # Ctrl-C reaches all processes, and the supervisor then sends SIGTERM
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
        os.close(self._own_end)
        return WorkerPool(
            number=number,
            size=self._size,
            name=self._name,
            status=self._status,
            folder=self._folder.path,
            weights=self._weights.path,
            lifeline=self._lifeline,
            is_restarted=is_restarted,
        )

    def _start_due(self) -> WorkerPool | None:
        now_s = time.monotonic()
        for number, slot in enumerate(self._slots):
            if slot.due_s is None or now_s < slot.due_s or self._stopping is not None:
                continue
            try:
                if pool := self._start(number):
                    return pool
            except OSError as error:  # out of memory or processes; others continue
                slot.delay_s = _next_delay_s(slot.delay_s)
                slot.due_s = now_s + slot.delay_s
                _log.error("worker cannot be started", of=number, reason=str(error), again_in_s=slot.delay_s)
            else:
                self._status.restarts[number] += 1
                _log.info("worker restarted", of=number, pid=slot.pid)
        return None

    def _next_s(self) -> float:
        """Return the time until the next task, at most `_MAX_WAIT_S`."""
        dues = [self._kill_s]
        if self._stopping is None:
            dues = [self._check_s, *(slot.due_s for slot in self._slots)]
        left_s = [due_s - time.monotonic() for due_s in dues if due_s is not None]
        return max(0.0, min([*left_s, _MAX_WAIT_S]))

    def _stop(self, number: int) -> None:
        """Stop all workers after their running work."""
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
        """Kill workers without recent heartbeats; restart them like dead ones.

        Checks are counted, not seconds, since the supervisor makes none either while the machine or container is
        suspended. A worker without a first heartbeat is still starting.
        """
        if time.monotonic() < self._check_s:
            return
        self._check_s = time.monotonic() + self._check_interval_s
        for number, slot in enumerate(self._slots):
            count = self._status.heartbeats[number]
            slot.missed = slot.missed + 1 if 0 < count == slot.heartbeats else 0
            slot.heartbeats = count
            if slot.missed == _MAX_MISSED_HEARTBEATS and self._stopping is None and slot.pid is not None:
                _log.error("hung worker killed", of=number, pid=slot.pid)
                # not reaped yet, so the pid is still its own
                os.kill(slot.pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Reap dead workers; kill workers that did not stop in time."""
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
        is_replaced = code > 0 and file_stamp(Path(__file__)) != self._program
        if is_replaced or not self._status.composed[number]:
            what = "the program was replaced while it ran" if is_replaced else "worker failed to start"
            _log.error(f"{what}; the service stops", of=number, pid=pid, how=how)
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
        """Remove the folders, then end by the stop signal; without one, return the exit code."""
        for folder in (self._folder, self._weights):
            folder.remove()
        if self._stopping:
            signal.signal(self._stopping, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (self._stopping,))
            signal.raise_signal(self._stopping)
        return self._exit_code


def _next_delay_s(delay_s: float) -> float:
    return min(_MAX_DELAY_S, max(_FIRST_DELAY_S, 2 * delay_s))


def _socket_folder() -> LockedFolder:
    """Create a folder closed to other users, its path short enough for sockets."""
    folder = LockedFolder("sockets")
    if len(os.fsencode(folder.path)) > _MAX_FOLDER_BYTES:
        folder.remove()
        raise InputError(
            f"the path of the folder of temporary files, {folder.path.parent}, is too long for sockets: "
            "set TMPDIR to a shorter path",
            param="TMPDIR",
        )
    return folder


def _shared_memory_folder() -> Path | None:
    """Return the shared memory folder; None if missing, read-only or too small for weights."""
    if not os.access(_SHARED_MEMORY, os.W_OK):
        return None
    return _SHARED_MEMORY if shutil.disk_usage(_SHARED_MEMORY).free >= _MIN_SHARED_MEMORY_BYTES else None


def prepare(host: ModelHost) -> bool:
    """Compile the kernels of a host's models; return whether one is a neural network."""
    wait(host.compile_kernels())
    for model in host.models.values():
        if model.version is not None:
            with contextlib.suppress(DomainError, OSError):  # loading the model reports the error
                if any(name.endswith(_WEIGHTS) for name in host.registry.manifest(model.version).files):
                    return True
    return False


def preload(*, networks: bool, float32: bool) -> None:
    """Import the modules of n-gram models, and of networks in int8 or float32.

    They are excluded from garbage collection, which writes to shared pages.
    """
    for name in (*_ALWAYS, *(_NEURAL if networks else ()), *(_FLOAT32 if networks and float32 else ())):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def probe_in_child(probe: Callable[[], bool]) -> bool:
    """Return the result of a probe in a child process, to leave no threads in this one.

    Those of a remote-file library, for instance, would be missing in workers forked later. If the probe raises,
    the child reports the error, and this process ends with the same exit code.
    """
    child = os.fork()
    if not child:
        os._exit(_YES if probe() else 0)  # without the parent's exit handlers
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in {0, _YES}:
        sys.exit(code if code > 0 else 1)
    return code == _YES
