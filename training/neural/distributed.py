"""Several processes that train one network: each has a share of the streams, all make the same updates.

Random draws, dropout's masks among them, are made for the whole batch in every process and each takes
its share, so the result is that of one process but for rounding. What is decided by the clock or a signal,
the first process decides for all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from models.errors import InvalidInputError
from models.neural.body import Hidden
from models.neural.dropout import Dropout

_PATIENCE = timedelta(days=1)  # others wait while the first one validates, evaluates, estimates n-grams


class Exchanged(NamedTuple):
    """What all processes know after an exchange: the mean loss, and the first one's clock."""

    loss: float
    seconds: float
    interrupted: bool


class Processes:
    """The processes of a run; one alone exchanges nothing.

    Args:
        rank: of this process, from 0.
        count: of all.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count

    @classmethod
    def current(cls) -> "Processes":
        """Those that were joined; else this one alone."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def leads(self) -> bool:
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
                module.part = (self.rank, self.count)

    def exchange(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        weight: float,
        loss: float,
        seconds: float,
        interrupted: bool,
    ) -> Exchanged:
        """Replace gradients by the sum of all processes' gradients, each times its weight.

        Args:
            parameters: with gradients of a mean loss.
            weight: this process's share of what the mean is over; they sum to 1.
            loss: the mean.
            seconds: by this process's clock.
            interrupted: whether this process was asked to end.
        """
        if self.count == 1:
            return Exchanged(loss, seconds, interrupted)
        gradients = [p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters]
        told = [weight * loss, seconds if self.leads else 0.0, float(interrupted)]
        flat = torch.cat([*(weight * g for g in gradients), gradients[0].new_tensor(told)])
        dist.all_reduce(flat)
        *sums, tail = torch.split(flat, [*(p.numel() for p in parameters), len(told)])
        for parameter, gradient in zip(parameters, sums, strict=True):
            parameter.grad = gradient.view_as(parameter)
        loss, seconds, asked = tail.tolist()
        return Exchanged(loss, seconds, asked > 0)

    def first_ones(self, value: float) -> float:
        """A number of the first process."""
        if self.count == 1:
            return value
        told = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(told, src=0)
        return float(told)

    def whole(self, hidden: Hidden) -> Hidden:
        """What is carried in all processes' rows, of tensors [·, B / count, ·] in each."""
        if self.count == 1:
            return hidden
        gathered = []
        for part in hidden:
            own = part.detach().cpu().contiguous()
            parts = [torch.empty_like(own) for _ in range(self.count)]
            dist.all_gather(parts, own)
            gathered.append(torch.cat(parts, dim=1))
        return tuple(gathered)


@contextmanager
def joined(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that torchrun started, and leave them at the end; nothing where it did not.

    Args:
        device: `cuda` becomes this process's own.

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
    dist.init_process_group(backend, timeout=_PATIENCE)
    try:
        yield device
    finally:
        dist.destroy_process_group()
