"""The other processes of a run: whether they live, how far they are, and why they ended.

Each tells the store that torchrun keeps how far it is, once a second, and reads there what the others tell. So a
process can wait for hours for one that is busy, and still knows in bounded time of one that is gone. The store is
talked to by a thread alone: whoever waits here can be interrupted, also while the store does not answer.
"""

import json
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol

from models.errors import ProcessLostError

PATIENCE_S = 300.0
"""How long a process may be silent, or an exchange between processes take, before a process is taken for dead."""

_HEARTBEAT_S = 1.0
_FIRST_PAUSE_S = 0.001
_SILENCE_S = 3.5  # of silence, once an exchange has failed: three beats that did not come
_ADVICE = "start all of them again; with --resume the training goes on from what was saved"


class Store(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: str) -> None:
        """Put a value."""
        ...

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values of keys, as soon as all have one."""
        ...


class _Peer:
    """What was heard of another process.

    Attributes:
        name: its number and its machine.
        barriers: that it has come to.
        exit_reason: why it ended; nothing if it ended as it should, None while it runs.
        heard: when it last told something new; by this process's clock.
    """

    def __init__(self, rank: int) -> None:
        self.name = f"process {rank}"
        self.barriers = 0
        self.exit_reason: str | None = None
        self.heard = time.monotonic()
        self._rank = rank
        self._said = b""

    def update(self, said: bytes) -> None:
        """Take in what it says of itself now."""
        if said == self._said:
            return
        self._said, self.heard = said, time.monotonic()
        told = json.loads(said)
        self.name = f"process {self._rank} on {told['machine']}"
        self.barriers, self.exit_reason = told["meetings"], told["farewell"]


class PeerMonitor:
    """This process among the others of its run.

    Args:
        store: that all share; used by this object alone.
        rank: of this process.
        count: of all.
        patience_s: silence after which a process is taken for dead.
    """

    def __init__(self, store: Store, rank: int, count: int, *, patience_s: float = PATIENCE_S) -> None:
        self._store = store
        self._rank = rank
        self._patience_s = patience_s
        self._peers = {other: _Peer(other) for other in range(count) if other != rank}
        self._barriers = 0
        self._heartbeats = 0
        self._exit_reason: str | None = None
        self._heard = time.monotonic()  # when the store last answered
        self._failure = ""  # of the store
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="company", daemon=True)
        self._thread.start()

    def barrier(self) -> None:
        """Wait until all processes are here, however long that takes while they live.

        Raises:
            ProcessLostError: one is gone.
        """
        self._barriers += 1
        self._wake.set()
        pause = _FIRST_PAUSE_S
        while late := [other for other in self._peers.values() if other.barriers < self._barriers]:
            ended = [other.name for other in late if other.exit_reason is not None]
            if ended or self._problem(late, silent_s=self._patience_s):
                raise self.lost_peer_error(f"{', '.join(ended)} ended before the others")
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def lost_peer_error(self, problem: str) -> ProcessLostError:
        """The error of an exchange that failed, which names who is gone and why, if that can be found out soon.

        Args:
            problem: what to tell otherwise.
        """
        until = time.monotonic() + 2 * _SILENCE_S
        while not (reason := self._problem(self._peers.values(), silent_s=_SILENCE_S)):
            if time.monotonic() > until:
                reason = f"an exchange between the processes failed: {problem}"
                break
            time.sleep(_HEARTBEAT_S / 10)
        return ProcessLostError(f"{reason}; {_ADVICE}")

    def leave(self, farewell: str) -> None:
        """Tell the others that this process ends, and why, if it is not as it should."""
        self._exit_reason = farewell
        self._wake.set()
        self._thread.join(timeout=2 * _HEARTBEAT_S)

    def _problem(self, others: Iterable[_Peer], *, silent_s: float) -> str:
        """Who of the others is gone; nothing if nobody is known to be."""
        now = time.monotonic()
        if self._failure:
            return f"torchrun on the machine of process 0 is gone: {self._failure}"
        if now - self._heard > silent_s:
            return f"torchrun on the machine of process 0 has not answered for {now - self._heard:.0f} s"
        for other in others:
            if other.exit_reason:
                return f"{other.name} ended: {other.exit_reason}"
        for other in others:
            if other.exit_reason is None and now - other.heard > silent_s:
                return f"{other.name} is gone: nothing was heard of it for {now - other.heard:.0f} s"
        return ""

    def _run(self) -> None:
        pause = _HEARTBEAT_S
        try:
            while self._exit_reason is None:
                self._publish()
                self._poll()
                if self._wake.wait(pause):
                    self._wake.clear()
                    pause = _FIRST_PAUSE_S
                pause = min(2 * pause, _HEARTBEAT_S)
            self._publish()
        except RuntimeError as error:  # torch's errors of stores are some
            self._failure = str(error).splitlines()[0]

    def _publish(self) -> None:
        self._heartbeats += 1
        own: dict[str, Any] = {
            "machine": socket.gethostname(),
            "beats": self._heartbeats,
            "meetings": self._barriers,
            "farewell": self._exit_reason,
        }
        self._store.set(_key(self._rank), json.dumps(own))

    def _poll(self) -> None:
        told = self._store.multi_get([_key(rank) for rank in self._peers])
        for other, said in zip(self._peers.values(), told, strict=True):
            other.update(said)
        self._heard = time.monotonic()


def _key(rank: int) -> str:
    return f"gramophone/process/{rank}"
