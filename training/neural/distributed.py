"""Data-parallel training in several processes, liveness of its processes, and signals.

Each process has a share of the streams, and all make the same updates. Random numbers, dropout
masks among them, are drawn for the whole batch in every process and each takes its rows, so the
result is that of one process but for rounding. The first process decides whatever depends on the
clock or on a signal. Processes may be on several machines; only the first one writes to disk.

Each process writes a heartbeat to torchrun's store once a second and reads those of the others, so
it can wait hours for a busy process and still detects a lost one in bounded time. Only a thread of
its own accesses the store, so that a waiting process can be interrupted.

Signals act between two updates, so that saved states are complete. Ctrl-C ends a training, which is
then evaluated and published. SIGTERM, as an orchestrator sends it, only saves: there may be no time
for more, and a half-trained model must not be served because a machine is serviced.
"""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from models.errors import InvalidInputError, LanguageModelError, ProcessLostError
from models.neural.cells import Dropout, Hidden

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


EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a command that SIGTERM ended: 143, as of one that does not handle it."""


class Terminated(SystemExit):
    """SIGTERM came; leads out of the program, cleaning up on the way.

    Args:
        unsaved: why the run could not be saved; empty where it was, or there was none.
    """

    def __init__(self, unsaved: str = "") -> None:
        super().__init__(EXIT_TERMINATED)
        self.unsaved = unsaved


class Interruption:
    """Whether a run is to end.

    Attributes:
        requested: by one Ctrl-C; a second one interrupts at once, as usual.
        terminated: by SIGTERM; a second one ends the process at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self.terminated = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """Take note of Ctrl-C."""
        if self.requested:
            signal.default_int_handler(number, frame)
        self.requested = True

    def terminate(self, _number: int, _frame: FrameType | None) -> None:
        """Take note of SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.terminated = True


@contextmanager
def catch_interruption() -> Iterator[Interruption]:
    """Take note of Ctrl-C for a while, and of SIGTERM where a command is `exit_on_sigterm`.

    Of nothing where a signal is handled otherwise, or outside the main thread.
    """
    asked = Interruption()
    with (
        _signal_handler(signal.SIGINT, asked.request, instead_of=signal.default_int_handler),
        _signal_handler(signal.SIGTERM, asked.terminate, instead_of=_raise_terminated),
    ):
        yield asked


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` for a while; process 1 of a container would ignore it otherwise.

    Also where a library that was interrupted by it, as DuckDB is, raises an error of its own.
    """
    with _signal_handler(signal.SIGTERM, _raise_terminated, instead_of=signal.SIG_DFL):
        handler = signal.getsignal(signal.SIGTERM)
        try:
            yield
        except LanguageModelError:
            raise
        except Exception as error:
            if handler == _raise_terminated and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                raise Terminated from error
            raise


def _raise_terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
    raise Terminated


@contextmanager
def _signal_handler(
    number: signal.Signals, handler: Callable[..., Any], *, instead_of: object
) -> Iterator[None]:
    """Handle a signal for a while, if it is handled as it is said to be."""
    before = signal.getsignal(number)
    if before != instead_of or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        if signal.getsignal(number) == handler:
            signal.signal(number, before)


class ExchangeResult(NamedTuple):
    """What all processes know after an exchange: the mean loss, the first one's clock, who was asked to end."""

    loss: float
    seconds: float
    interrupted: bool
    terminated: bool


class Processes:
    """The processes of a run; one alone exchanges nothing.

    Args:
        rank: of this process, from 0.
        count: of all.
        company: what is known of the others; None for one alone.
    """

    _joined: ClassVar["Processes | None"] = None

    def __init__(self, rank: int = 0, count: int = 1, company: PeerMonitor | None = None) -> None:
        self.rank = rank
        self.count = count
        self._monitor = company

    @classmethod
    def current(cls) -> "Processes":
        """Those that were joined; else this one alone."""
        return cls._joined or cls()

    @property
    def is_leader(self) -> bool:
        """Whether this process validates, saves, publishes and tells."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """This process's rows of a batch.

        Raises:
            InvalidInputError: the batch cannot be divided equally.
        """
        if batch % self.count:
            raise InvalidInputError(
                f"train.batch_size is {batch} here, which {self.count} processes cannot divide equally",
                parameter="train.batch_size",
            )
        share = batch // self.count
        return slice(self.rank * share, (self.rank + 1) * share)

    def divide_dropout(self, network: nn.Module) -> None:
        """Have the network's dropout draw for the whole batch and take this process's share."""
        for module in network.modules():
            if isinstance(module, Dropout):
                module.shard = (self.rank, self.count)

    def barrier(self) -> None:
        """Wait until all processes are here; before an exchange that one of them may come to much later.

        Raises:
            ProcessLostError: one is gone; so it is in all that follows.
        """
        if self._monitor is not None:
            self._monitor.barrier()

    def exchange(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        weight: float,
        loss: float,
        seconds: float,
        interrupted: bool,
        terminated: bool,
    ) -> ExchangeResult:
        """Replace gradients by the sum of all processes' gradients, each times its weight.

        Args:
            parameters: with gradients of a mean loss.
            weight: this process's share of what the mean is over; they sum to 1.
            loss: the mean.
            seconds: by this process's clock.
            interrupted: whether this process was asked to end.
            terminated: whether it was asked to end and publish nothing.
        """
        if self.count == 1:
            return ExchangeResult(loss, seconds, interrupted, terminated)
        gradients = [p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters]
        told = [weight * loss, seconds if self.is_leader else 0.0, float(interrupted), float(terminated)]
        flat = torch.cat([*(weight * g for g in gradients), gradients[0].new_tensor(told)])
        with self._detect_lost_peer():
            dist.all_reduce(flat)
            *sums, tail = torch.split(flat, [*(p.numel() for p in parameters), len(told)])
            loss, seconds, interruptions, terminations = tail.tolist()
        for parameter, gradient in zip(parameters, sums, strict=True):
            parameter.grad = gradient.view_as(parameter)
        return ExchangeResult(loss, seconds, interruptions > 0, terminations > 0)

    def broadcast_value(self, value: float) -> float:
        """A number of the first process, which may be busy with it for long."""
        if self.count == 1:
            return value
        self.barrier()
        told = torch.tensor([value], dtype=torch.float64)
        with self._detect_lost_peer():
            dist.broadcast(told, src=0)
        return float(told)

    def broadcast_bytes(self, content: bytes | None) -> bytes | None:
        """The first process's bytes, or None; what the others give does not matter."""
        if self.count == 1:
            return content
        size = -1 if content is None else len(content)
        length = torch.tensor([size if self.is_leader else 0])
        with self._detect_lost_peer():
            dist.broadcast(length, src=0)
            if length < 0:
                return None
            told = (
                _bytes_tensor(content or b"")
                if self.is_leader
                else torch.empty(int(length), dtype=torch.uint8)
            )
            dist.broadcast(told, src=0)
        return told.numpy().tobytes()

    def broadcast_weights(self, network: nn.Module) -> None:
        """Let the network start as the first process's does."""
        if self.count == 1:
            return
        with self._detect_lost_peer():
            for parameter in network.parameters():
                dist.broadcast(parameter.data, src=0)

    def gather_texts(self, text: str) -> list[str]:
        """What each process tells, by rank."""
        if self.count == 1:
            return [text]
        self.barrier()
        own = _bytes_tensor(text.encode())
        with self._detect_lost_peer():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            dist.all_gather(sizes, torch.tensor([len(own)]))
            longest = max(int(size) for size in sizes)
            rows = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
            dist.all_gather(rows, nn.functional.pad(own, (0, longest - len(own))))
        return [row[: int(size)].numpy().tobytes().decode() for row, size in zip(rows, sizes, strict=True)]

    def gather_hidden(self, hidden: Hidden) -> Hidden:
        """What is carried in all processes' rows, of tensors [·, B / count, ·] in each."""
        if self.count == 1:
            return hidden
        gathered = []
        for part in hidden:
            own = part.detach().cpu().contiguous()
            parts = [torch.empty_like(own) for _ in range(self.count)]
            with self._detect_lost_peer():
                dist.all_gather(parts, own)
            gathered.append(torch.cat(parts, dim=1))
        return tuple(gathered)

    @contextmanager
    def _detect_lost_peer(self) -> Iterator[None]:
        """Tell who is gone where an exchange fails."""
        try:
            yield
        except RuntimeError as error:  # torch's errors of connections and of time are some
            if self._monitor is None:
                raise
            raise self._monitor.lost_peer_error(str(error).splitlines()[0]) from error


@contextmanager
def join_processes(device: torch.device, *, patience_s: float = PATIENCE_S) -> Iterator[torch.device]:
    """Join the processes that torchrun started, and leave them at the end; nothing where it did not.

    Args:
        device: `cuda` becomes this process's own.
        patience_s: how long an exchange may take, and a process be silent.

    Yields:
        The device to compute on.
    """
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", dist.get_node_local_rank())
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    patience = timedelta(seconds=patience_s)
    store, rank, count = next(rendezvous("env://", timeout=patience))
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=patience)
    company = PeerMonitor(store.clone(), rank, count, patience_s=patience_s) if count > 1 else None
    Processes._joined = Processes(rank, count, company)  # noqa: SLF001 - torch's group is as global
    try:
        with _report_exit(company):
            yield device
    finally:
        Processes._joined = None  # noqa: SLF001
        dist.destroy_process_group()


@contextmanager
def _report_exit(company: PeerMonitor | None) -> Iterator[None]:
    """Tell the others why this process ends."""
    reason = ""
    try:
        yield
    except ProcessLostError:  # they know
        raise
    except LanguageModelError as error:
        reason = str(error)
        raise
    except Terminated:
        reason = "by SIGTERM"
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        if company is not None:
            company.leave(reason)


def _bytes_tensor(content: bytes) -> Tensor:
    return (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if content
        else torch.empty(0, dtype=torch.uint8)
    )
