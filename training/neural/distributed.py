"""Several processes that train one network: each has a share of the streams, all make the same updates.

Random draws, dropout's masks among them, are made for the whole batch in every process and each takes
its share, so the result is that of one process but for rounding. What is decided by the clock or a signal,
the first process decides for all. They may be on several machines; only the first one's disk is written to.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from models.errors import InvalidInputError, LanguageModelError, ProcessLostError
from models.neural.body import Hidden
from models.neural.dropout import Dropout
from training.neural.company import PATIENCE_S, PeerMonitor
from training.neural.interruption import Terminated


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
