"""Data-parallel training in several processes, and liveness of the processes.

Each process has a share of the streams; all make the same updates. Each draws the
random numbers, such as dropout masks, for the entire batch and uses its rows; the result
equals that of one process except for rounding. Rank 0 makes all decisions that depend on
clock or signals. Processes may run on several machines; only rank 0 writes to disk.

Each process writes a heartbeat to torchrun's store once per second and reads those of
its peers, so it can wait hours for a busy one and still detects a lost one in bounded
time. A separate thread accesses the store, so a waiting process can be interrupted.

Before they train, the processes compare their commands and texts.
"""

import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib import metadata
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from models.errors import DomainError, InputError, ProcessLostError
from models.neural.cells import Dropout, Hidden
from models.tokenizers import Tokenizer
from training.progress import Terminated
from training.recipe import Recipe
from training.texts import EncodedTexts, Texts

OWN_VERSION = next((one.version for one in metadata.distributions(name="gramophone-lm")), "unknown")
"""The program's version; unknown if its source is used without an installation."""

PATIENCE_S = 300.0
"""Seconds without heartbeat, or of an exchange, after which a process is lost."""

_KEY = "gramophone/process/"
_HEARTBEAT_S = 1.0
_FIRST_PAUSE_S = 0.001
_SILENCE_S = 3.5  # without a heartbeat after a failed exchange: three missed
_ADVICE = "restart all processes; with --resume, the training continues from the saved state"


class _Peer:
    """Last known state of another process.

    Attributes:
        name: rank and machine of the process.
        barriers: number of barriers reached.
        exit_reason: reason for its end; empty if normal, None while it runs.
        heard: time of its last new message, by the own clock.
    """

    def __init__(self, rank: int) -> None:
        self.name = f"process {rank}"
        self.barriers = 0
        self.exit_reason: str | None = None
        self.heard = time.monotonic()
        self._rank = rank
        self._said = b""

    def update(self, message: bytes) -> None:
        """Process its latest message, in the JSON of `PeerMonitor`."""
        if message == self._said:
            return
        self._said, self.heard = message, time.monotonic()
        fields = json.loads(message)
        self.name = f"process {self._rank} on {fields['machine']}"
        self.barriers, self.exit_reason = fields["meetings"], fields["farewell"]


class PeerMonitor:
    """Heartbeats between the processes of a run, and detection of lost processes.

    Args:
        store: all processes' store; only this object uses the handle.
        rank: rank of this process.
        count: number of processes.
        patience_s: seconds without a heartbeat after which a process is lost.
    """

    def __init__(self, store: Store, rank: int, count: int, *, patience_s: float) -> None:
        self._store = store
        self._rank = rank
        self._patience_s = patience_s
        self._peers = {peer: _Peer(peer) for peer in range(count) if peer != rank}
        self._barriers = 0
        self._heartbeats = 0
        self._exit_reason: str | None = None
        self._heard = time.monotonic()  # when the store last answered
        self._failure = ""  # error of the store
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="company", daemon=True)
        self._thread.start()

    def barrier(self) -> None:
        """Wait until all processes reach this barrier; no timeout while they are alive.

        Raises:
            ProcessLostError: another process was lost.
        """
        self._barriers += 1
        self._wake.set()
        pause = _FIRST_PAUSE_S
        while late := [peer for peer in self._peers.values() if peer.barriers < self._barriers]:
            ended = [peer.name for peer in late if peer.exit_reason is not None]
            if ended or self._problem(late, silent_s=self._patience_s):
                raise self.lost_peer_error(f"{', '.join(ended)} ended before the other processes")
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def lost_peer_error(self, problem: str) -> ProcessLostError:
        """Build a failed exchange's error, with the lost process and reason if found in time."""
        until = time.monotonic() + 2 * _SILENCE_S
        while not (reason := self._problem(self._peers.values(), silent_s=_SILENCE_S)):
            if time.monotonic() > until:
                reason = f"an exchange between the processes failed: {problem}"
                break
            time.sleep(_HEARTBEAT_S / 10)
        return ProcessLostError(f"{reason}; {_ADVICE}")

    def leave(self, farewell: str) -> None:
        """Report this process's end to its peers, with the reason unless normal."""
        self._exit_reason = farewell
        self._wake.set()
        self._thread.join(timeout=2 * _HEARTBEAT_S)

    def _problem(self, peers: Iterable[_Peer], *, silent_s: float) -> str:
        """Describe a lost process among `peers`; empty if none is known."""
        now = time.monotonic()
        if self._failure:
            return f"torchrun on the machine of process 0 was lost: {self._failure}"
        if now - self._heard > silent_s:
            return f"torchrun on the machine of process 0 has not answered for {now - self._heard:.0f} s"
        for peer in peers:
            if peer.exit_reason:
                return f"{peer.name} ended: {peer.exit_reason}"
        for peer in peers:
            # until the store's last answer: a silent store tells nothing
            if peer.exit_reason is None and (silence_s := self._heard - peer.heard) > silent_s:
                return f"{peer.name} was lost: no heartbeat for {silence_s:.0f} s"
        return ""

    def _run(self) -> None:
        pause = _HEARTBEAT_S
        try:
            while self._exit_reason is None:
                self._publish()
                messages = self._store.multi_get([f"{_KEY}{rank}" for rank in self._peers])
                for peer, message in zip(self._peers.values(), messages, strict=True):
                    peer.update(message)
                self._heard = time.monotonic()
                if self._wake.wait(pause):
                    self._wake.clear()
                    pause = _FIRST_PAUSE_S
                pause = min(2 * pause, _HEARTBEAT_S)
            self._publish()
        except RuntimeError as error:  # torch's store errors are subclasses
            self._failure = str(error).splitlines()[0]

    def _publish(self) -> None:
        self._heartbeats += 1
        own: dict[str, Any] = {"machine": socket.gethostname(), "beats": self._heartbeats}
        own |= {"meetings": self._barriers, "farewell": self._exit_reason}
        self._store.set(f"{_KEY}{self._rank}", json.dumps(own))


class ExchangeStatus(NamedTuple):
    """State of an update in one process before an exchange, in all after it.

    Attributes:
        loss: mean loss over the process's rows, or all rows.
        seconds: seconds of the run, by the process's clock, or rank 0's.
        interrupted: True if the process, or any, received Ctrl-C.
        terminated: True if it received SIGTERM: end and publish nothing.
    """

    loss: float
    seconds: float
    interrupted: bool
    terminated: bool


class Processes:
    """The processes of a run; a single process exchanges nothing.

    Args:
        rank: rank of this process, from 0.
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
        """Return the joined processes, or this single one."""
        return cls._joined or cls()

    @property
    def is_leader(self) -> bool:
        """True if this process validates, saves, publishes and reports."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """Return this process's rows of a batch.

        Raises:
            InputError: the number of processes does not divide the batch.
        """
        if batch % self.count:
            problem = f"is {batch} for this text; it must be a multiple of the {self.count} processes"
            raise InputError.of("train.batch_size", problem)
        share = batch // self.count
        return slice(self.rank * share, (self.rank + 1) * share)

    def divide_dropout(self, network: nn.Module) -> None:
        """Make the network's dropout draw masks for the entire batch and use own rows."""
        for module in network.modules():
            if isinstance(module, Dropout):
                module.shard = (self.rank, self.count)

    def barrier(self) -> None:
        """Wait for all processes; required before exchanges that one may reach much later.

        Raises:
            ProcessLostError: another process was lost; the methods below also raise it.
        """
        if self._monitor is not None:
            self._monitor.barrier()

    def exchange(
        self, parameters: Sequence[nn.Parameter], own: ExchangeStatus, *, weight: float
    ) -> ExchangeStatus:
        """Replace gradients by the weighted sum over processes; return the common status.

        Args:
            parameters: parameters with gradients of a mean loss.
            own: status of this process.
            weight: its share of the predicted tokens; shares sum to 1.
        """
        if self.count == 1:
            return own
        gradients = [p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters]
        seconds = own.seconds if self.is_leader else 0.0
        extras = [weight * own.loss, seconds, float(own.interrupted), float(own.terminated)]
        flat = torch.cat([*(weight * g for g in gradients), gradients[0].new_tensor(extras)])  # one exchange
        with self._detect_lost_peer():
            dist.all_reduce(flat)
            *sums, tail = torch.split(flat, [*(p.numel() for p in parameters), len(extras)])
            loss, seconds, interruptions, terminations = tail.tolist()
        for param, gradient in zip(parameters, sums, strict=True):
            param.grad = gradient.view_as(param)
        return ExchangeStatus(loss, seconds, interruptions > 0, terminations > 0)

    def broadcast_value(self, value: float) -> float:
        """Broadcast the value of rank 0, which may take long to compute."""
        self.barrier()
        return float(np.frombuffer(self.broadcast_bytes(np.float64(value).tobytes()) or b"")[0])

    def broadcast_bytes(self, content: bytes | None, *, source: int = 0) -> bytes | None:
        """Broadcast one process's bytes, or None, by default rank 0's; others' are ignored."""
        if self.count == 1:
            return content
        length = torch.tensor([-1 if content is None else len(content)])
        with self._detect_lost_peer():
            dist.broadcast(length, src=source)
            if length < 0:
                return None
            own = bytearray(content or b"") if self.rank == source else bytearray(int(length))
            tensor = torch.from_numpy(np.frombuffer(own, np.uint8))
            dist.broadcast(tensor, src=source)
        return tensor.numpy().tobytes()

    def broadcast_weights(self, network: nn.Module) -> None:
        """Broadcast the parameters of rank 0 into the network."""
        if self.count == 1:
            return
        with self._detect_lost_peer():
            for param in network.parameters():
                dist.broadcast(param.data, src=0)

    def gather_texts(self, text: str) -> list[str]:
        """Gather all processes' texts, by rank."""
        self.barrier()
        contents = [self.broadcast_bytes(text.encode(), source=rank) for rank in range(self.count)]
        return [(content or b"").decode() for content in contents]

    def gather_hidden(self, hidden: Hidden) -> Hidden:
        """Gather the states of all processes, [·, B / count, ·] each, into [·, B, ·]."""
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
        """Make a failed exchange an error that names the lost process."""
        try:
            yield
        except RuntimeError as error:  # torch's connection and timeout errors are subclasses
            if self._monitor is None:
                raise
            raise self._monitor.lost_peer_error(str(error).splitlines()[0]) from error


@contextmanager
def join_processes(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that torchrun started, and leave them at the end; without torchrun, do nothing.

    Args:
        device: compute device; `cuda` becomes this process's device.

    Yields:
        The compute device.
    """
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", dist.get_node_local_rank())
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    patience = timedelta(seconds=PATIENCE_S)
    store, rank, count = next(rendezvous("env://", timeout=patience))
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=patience)
    monitor = PeerMonitor(store.clone(), rank, count, patience_s=PATIENCE_S) if count > 1 else None
    Processes._joined = Processes(rank, count, monitor)  # noqa: SLF001 - torch's group is as global
    reason = ""  # why this process ends, for the other processes
    try:
        yield device
    except BaseException as error:
        if isinstance(error, DomainError):
            # all processes detect a lost process themselves
            reason = "" if isinstance(error, ProcessLostError) else str(error)
        else:
            reason = "by SIGTERM" if isinstance(error, Terminated) else f"{type(error).__name__}: {error}"
        raise
    finally:
        if monitor is not None:
            monitor.leave(reason)
        Processes._joined = None  # noqa: SLF001
        dist.destroy_process_group()


def check_same_command(
    recipe: Recipe, parts: Mapping[str, Recipe], *, device: str, resume: bool
) -> list[str]:
    """Check that all processes run the same command, before any work.

    Returns:
        Notes on permitted differences.

    Raises:
        InputError: commands differ, with processes, setting and both
            values in the message; or a network of several processes has teachers.
        ProcessLostError: another process was lost.
    """
    facts = {
        "the program's version": OWN_VERSION,
        "--device": torch.device(device).type,
        "--resume": resume,
    }
    for prefix, part in {"": recipe, **{f"{title}: ": part for title, part in parts.items()}}.items():
        for name, value in part.model_dump(mode="json").items():
            values = value.items() if isinstance(value, dict) else [(None, value)]
            facts |= {f"{prefix}{name}{f'.{key}' if key else ''}": v for key, v in values}
    facts_by_rank = _gather_facts(facts, torch=torch.__version__)
    check_agreement(facts_by_rank)
    if len(facts_by_rank) > 1 and any(part.train.teacher for part in parts.values()):
        problem = f"requires one process, but torchrun started {len(facts_by_rank)}"
        raise InputError.of("train.teacher", problem)
    versions = sorted({str(process["torch"]) for process in facts_by_rank})
    note = f"the processes have different versions of torch: {', '.join(versions)}"
    return [note] if len(versions) > 1 else []


def check_same_text(texts: Texts, encoded: EncodedTexts, tokenizer: Tokenizer) -> None:
    """Check that all processes train on the same text and tokens.

    Raises:
        InputError: texts differ; the message names processes, text and both hashes.
        ProcessLostError: another process was lost.
    """
    hashes = {
        "the training text": texts.train.sha256,
        "the validation text": texts.valid.sha256,
        "the tokenizer": tokenizer.fingerprint,
        "the training text in tokens": encoded.train.token_hash(),
        "the validation text in tokens": encoded.valid.token_hash(),
    }
    facts_by_rank = _gather_facts({name: f"sha256 {value[:12]}" for name, value in hashes.items()})
    check_agreement(facts_by_rank, shown=1)  # the first difference causes the others


def check_agreement(facts_by_rank: Sequence[Mapping[str, Any]], *, shown: int = 3) -> None:
    """Compare the facts of each process, by rank, with those of rank 0.

    Raises:
        InputError: facts differ; the message has the first `shown` differences.
    """
    first = facts_by_rank[0]
    for rank, process in enumerate(facts_by_rank):
        own, expected = process["facts"], first["facts"]
        differences = [
            f"{name} is {own.get(name)}, but {expected.get(name)} in process 0"
            for name in {**expected, **own}
            if own.get(name) != expected.get(name)
        ]
        if differences:
            listed = "; ".join(differences[:shown])
            more = f"; and {len(differences) - shown} more" if len(differences) > shown else ""
            raise InputError(
                f"process {rank} on {process['machine']} does not match process 0 on "
                f"{first['machine']}: {listed}{more}; give all machines the same program, command and text"
            )


def _gather_facts(facts: Mapping[str, Any], **more: str) -> list[dict[str, Any]]:
    """Gather every process's facts and host name, by rank."""
    own = {"machine": socket.gethostname(), "facts": facts, **more}
    return [json.loads(text) for text in Processes.current().gather_texts(json.dumps(own))]
