"""Data-parallel training in several processes, liveness of its processes, and signals.

Each process has a share of the streams, and all make the same updates. Random numbers, dropout
masks among them, are drawn for the whole batch in every process and each takes its rows, so the
result is that of one process but for rounding. The first process decides whatever depends on the
clock or on a signal. Processes may be on several machines; only the first one writes to disk.

A thread of each process passes torch's monitored barrier once a second, so a process can wait hours
for a busy one, and a lost one is still detected in bounded time. What ends a process stands in
torchrun's store, for the others' messages; that thread alone waits for it, so that a waiting process
can be interrupted.

Signals act between two updates, so that saved states are complete. Ctrl-C ends a training, which is
then evaluated and published. SIGTERM, as an orchestrator sends it, only saves: there may be no time
for more, and a half-trained model must not be served because a machine is serviced.
"""

import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from models.errors import InvalidInputError, LanguageModelError, ProcessLostError
from models.neural.cells import Dropout, Hidden

PATIENCE_S = 300.0
"""Longest silence of a process, or duration of an exchange, before a process counts as dead, in seconds."""

_HEARTBEAT_S = 1.0
_POLL_S = 0.005
_REASON_WAIT_S = 5.0  # for what another process writes when it ends
_EXIT_REASON = "exit_reason"  # key in the store; the first process that ends sets it
_ADVICE = "start all of them again; with --resume the training goes on from what was saved"


class PeerMonitor:
    """Heartbeats between the processes of a run, and detection of lost ones; all processes make it together.

    Args:
        store: shared by all processes.
        rank: of this process.
        count: number of processes.
        patience_s: silence after which a process counts as dead.
    """

    def __init__(self, store: Store, rank: int, count: int, *, patience_s: float = PATIENCE_S) -> None:
        self._store = store
        self._rank = rank
        self._count = count
        self._patience = timedelta(seconds=patience_s)
        self._names = [f"process {number}" for number in range(count)]
        self._barriers = self._passed = 0  # barriers that this process has reached, and that all have
        self._gathered = 0
        self._failure = self._exit_reason = ""  # why another process ended, or this one
        self._wake = threading.Event()
        self._left = False
        self._heartbeats = dist.new_group(backend="gloo", timeout=self._patience)
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._thread.start()
        machines = self.gather_texts(socket.gethostname())
        self._names = [f"process {number} on {machine}" for number, machine in enumerate(machines)]

    def barrier(self) -> None:
        """Wait until all processes have reached this barrier, however long that takes while they live.

        Raises:
            ProcessLostError: a process is gone.
        """
        self._barriers += 1
        self._wake.set()
        while self._passed < self._barriers:  # polled, so that signals are handled
            if self._failure:
                raise self.lost_peer_error(self._failure)
            time.sleep(_POLL_S)

    def gather_texts(self, text: str) -> list[str]:
        """Return each process's text, by rank.

        Raises:
            ProcessLostError: a process is gone.
        """
        self._gathered += 1
        keys = [f"texts/{self._gathered}/{rank}" for rank in range(self._count)]
        self._store.set(keys[self._rank], text)
        self.barrier()
        texts = [content.decode() for content in self._store.multi_get(keys)]
        self.barrier()  # with process 0 the store ends
        return texts

    def lost_peer_error(self, problem: str) -> ProcessLostError:
        """Make the error of a failed exchange: why the first process ended, else which one is lost.

        Args:
            problem: reported if neither is soon known.
        """
        self._thread.join(2 * _REASON_WAIT_S)  # heartbeats fail as well
        reason = self._failure or f"an exchange between the processes failed: {problem}"
        return ProcessLostError(f"{reason}; {_ADVICE}")

    def leave(self, error: BaseException | None = None) -> None:
        """End the heartbeats of this process; report to the others why it ends, if not normally."""
        if error is not None and not isinstance(error, ProcessLostError):  # the others detect that themselves
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, LanguageModelError):
                reason = str(error)
            elif isinstance(error, Terminated):
                reason = "by SIGTERM"
            self._exit_reason = f"{self._names[self._rank]} ended: {reason}"
        self._left = True
        self._wake.set()
        self._thread.join(_REASON_WAIT_S)

    def _run(self) -> None:
        """Beat until this process leaves or one is lost; its reason is then set in, or read from, the store."""
        pause = _HEARTBEAT_S
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self._count)]
        try:
            while not self._left:
                dist.monitored_barrier(self._heartbeats, timeout=self._patience, wait_all_ranks=True)
                dist.all_gather(counts, torch.tensor([self._barriers]), group=self._heartbeats)
                self._passed = min(int(count) for count in counts)
                # process 0 waits in torch's barrier, which names a process that is lost meanwhile
                if self._rank and self._wake.wait(pause):
                    self._wake.clear()
                    pause = _POLL_S
                pause = min(2 * pause, _HEARTBEAT_S)
        except RuntimeError as error:
            # only process 0 hears from all; the others hear from it, and wait for what it reports
            lost = re.search(r"Ranks? ([\d, ]+) failed to pass", str(error))
            ranks = lost[1].split(",") if lost else ["0"]
            names = ", ".join(self._names[int(rank)] for rank in ranks)
            self._failure = f"{names if lost or self._rank else 'another process'} is gone"
        with suppress(RuntimeError):  # the store may be gone with process 0, or never answer
            if self._failure and self._rank:
                self._store.wait([_EXIT_REASON], timedelta(seconds=_REASON_WAIT_S))
                self._failure = self._store.get(_EXIT_REASON).decode()
            elif reason := self._failure or self._exit_reason:
                self._failure = self._store.compare_set(_EXIT_REASON, "", reason).decode()


EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a command that SIGTERM ended: 143, as of one that does not handle it."""


class Terminated(SystemExit):
    """Exit by SIGTERM; it unwinds the stack, so that everything is cleaned up.

    Args:
        unsaved: why the run could not be saved; empty if it was, or if there was none.
    """

    def __init__(self, unsaved: str = "") -> None:
        super().__init__(EXIT_TERMINATED)
        self.unsaved = unsaved


class Interruption:
    """Requests to end a run.

    Attributes:
        requested: Ctrl-C was pressed once; a second one interrupts immediately, as usual.
        terminated: SIGTERM was received; a second one ends the process immediately.
    """

    def __init__(self) -> None:
        self.requested = False
        self.terminated = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """Record Ctrl-C."""
        if self.requested:
            signal.default_int_handler(number, frame)
        self.requested = True

    def terminate(self, _number: int, _frame: FrameType | None) -> None:
        """Record SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.terminated = True


@contextmanager
def catch_interruption() -> Iterator[Interruption]:
    """Record Ctrl-C inside the block, and SIGTERM inside an `exit_on_sigterm` block.

    A signal with another handler is left alone, and so is every signal outside the main thread.
    """
    interruption = Interruption()
    with (
        _signal_handler(signal.SIGINT, interruption.request, instead_of=signal.default_int_handler),
        _signal_handler(signal.SIGTERM, interruption.terminate, instead_of=_raise_terminated),
    ):
        yield interruption


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise `Terminated` inside the block; process 1 of a container would ignore it otherwise.

    An error of a library that it interrupted, such as DuckDB, becomes `Terminated`, too.
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
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process immediately
    raise Terminated


@contextmanager
def _signal_handler(
    number: signal.Signals, handler: Callable[..., Any], *, instead_of: object
) -> Iterator[None]:
    """Handle a signal inside the block, if its handler so far is `instead_of`."""
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


class UpdateStatus(NamedTuple):
    """State of an update in one process, before an exchange, or in all, after it.

    Attributes:
        loss: mean over the process's rows, or over all.
        seconds: by the process's clock, or by the first one's.
        interrupted: whether the process, or any, got Ctrl-C.
        terminated: whether it got SIGTERM: end and publish nothing.
    """

    loss: float
    seconds: float
    interrupted: bool
    terminated: bool


class Processes:
    """The processes of a run; a single one exchanges nothing.

    Args:
        rank: of this process, from 0.
        count: number of processes.
        monitor: monitor of the other processes; None for a single process.
    """

    _joined: ClassVar["Processes | None"] = None

    def __init__(self, rank: int = 0, count: int = 1, monitor: PeerMonitor | None = None) -> None:
        self.rank = rank
        self.count = count
        self._monitor = monitor

    @classmethod
    def current(cls) -> "Processes":
        """Return the joined processes; without any, this single one."""
        return cls._joined or cls()

    @property
    def is_leader(self) -> bool:
        """Whether this process validates, saves, publishes and reports."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """Return this process's rows of a batch.

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
        """Make the network's dropout draw masks for the whole batch and use this process's rows."""
        for module in network.modules():
            if isinstance(module, Dropout):
                module.shard = (self.rank, self.count)

    def barrier(self) -> None:
        """Wait for all processes; needed before an exchange that one of them may reach much later.

        Raises:
            ProcessLostError: a process is gone; the methods below raise it, too.
        """
        if self._monitor is not None:
            with self._detect_lost_peer():
                self._monitor.barrier()

    def exchange(
        self, parameters: Sequence[nn.Parameter], own: UpdateStatus, *, weight: float
    ) -> UpdateStatus:
        """Replace gradients by the weighted sum of all processes' gradients, and return the status of all.

        Args:
            parameters: with gradients of a mean loss.
            own: status of this process.
            weight: this process's share of the predicted tokens; shares sum to 1.
        """
        if self.count == 1:
            return own
        gradients = [p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters]
        seconds = own.seconds if self.is_leader else 0.0
        extras = [weight * own.loss, seconds, float(own.interrupted), float(own.terminated)]
        flat = torch.cat([*(weight * g for g in gradients), gradients[0].new_tensor(extras)])
        with self._detect_lost_peer():
            dist.all_reduce(flat)
            *sums, tail = torch.split(flat, [*(p.numel() for p in parameters), len(extras)])
            loss, seconds, interruptions, terminations = tail.tolist()
        for parameter, gradient in zip(parameters, sums, strict=True):
            parameter.grad = gradient.view_as(parameter)
        return UpdateStatus(loss, seconds, interruptions > 0, terminations > 0)

    def broadcast_value(self, value: float) -> float:
        """Return the first process's number, which may take it a long time to compute."""
        if self.count == 1:
            return value
        self.barrier()
        tensor = torch.tensor([value], dtype=torch.float64)
        with self._detect_lost_peer():
            dist.broadcast(tensor, src=0)
        return float(tensor)

    def broadcast_bytes(self, content: bytes | None) -> bytes | None:
        """Return the first process's bytes, or None; the arguments of other processes are ignored."""
        if self.count == 1:
            return content
        size = int(self.broadcast_value(-1 if content is None else len(content)))
        if size < 0:
            return None
        sent = content if self.is_leader and content is not None else bytes(size)
        tensor = torch.as_tensor(np.frombuffer(bytearray(sent), np.uint8))
        with self._detect_lost_peer():
            dist.broadcast(tensor, src=0)
        return tensor.numpy().tobytes()

    def broadcast_weights(self, network: nn.Module) -> None:
        """Copy the first process's parameters into the network."""
        if self.count == 1:
            return
        with self._detect_lost_peer():
            for parameter in network.parameters():
                dist.broadcast(parameter.data, src=0)

    def gather_texts(self, text: str) -> list[str]:
        """Return each process's text, by rank."""
        return [text] if self._monitor is None else self._monitor.gather_texts(text)

    def gather_hidden(self, hidden: Hidden) -> Hidden:
        """Join the processes' states, tensors [·, B / count, ·] in each, to [·, B, ·]."""
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
        """Turn a failed exchange into an error that names the lost process."""
        try:
            yield
        except RuntimeError as error:  # torch's connection and timeout errors are subclasses
            if self._monitor is None:
                raise
            raise self._monitor.lost_peer_error(str(error).splitlines()[0]) from error


@contextmanager
def join_processes(device: torch.device, *, patience_s: float = PATIENCE_S) -> Iterator[torch.device]:
    """Join the processes that torchrun started, and leave them at the end; without torchrun do nothing.

    Args:
        device: `cuda` becomes the device of this process.
        patience_s: longest duration of an exchange and longest silence of a process.

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
    monitor = PeerMonitor(store, rank, count, patience_s=patience_s) if count > 1 else None
    Processes._joined = Processes(rank, count, monitor)  # noqa: SLF001 - torch's group is as global
    ended: BaseException | None = None
    try:
        yield device
    except BaseException as error:
        ended = error
        raise
    finally:
        Processes._joined = None  # noqa: SLF001
        if monitor is not None:
            monitor.leave(ended)
        dist.destroy_process_group()
