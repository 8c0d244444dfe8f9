"""A step as one launch: a small network on a CUDA device computes faster than it can be asked for piece by piece.

A step is recorded once for each of a few batch sizes and replayed from then on (CUDA graphs). Rows are padded to
the next size, so that few recordings serve all.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from models.neural.body import Hidden
from models.neural.network import Network

MAX_ROWS = 1024
"""Beyond so many rows the device is busy with the step itself, and nothing is recorded."""

_WARM_UPS = 3  # what torch's documentation advises: libraries choose their kernels and take their memory at first calls

Record: TypeAlias = Callable[[Callable[[], Hidden]], "Recording"]


class Recording(NamedTuple):
    """A computation that can be done again.

    Attributes:
        replay: does it with whatever now lies in the tensors that it reads.
        outputs: where its results lie after that, until the next time.
    """

    replay: Callable[[], None]
    outputs: Hidden


class RecordedSteps:
    """`Network.step` of up to `MAX_ROWS` rows, recorded and replayed.

    Args:
        network: in evaluation mode; its parameters must stay where they are.
        record: how a computation is recorded.
    """

    def __init__(self, network: Network, record: Record) -> None:
        self._network = network
        self._record = record
        self._bound: dict[int, _Bound] = {}

    def step(self, tokens: Tensor, hidden: Hidden) -> Hidden:
        """Consume one token a row, ids [B].

        Args:
            tokens: ids [B], B at most `MAX_ROWS`.
            hidden: what is carried; it is not changed.

        Returns:
            What is carried on, of the same shapes.
        """
        rows = tokens.shape[0]
        size = 1 << max(rows - 1, 0).bit_length()
        if size not in self._bound:
            self._bound[size] = self._bind(size, tokens)
        bound = self._bound[size]
        bound.tokens[:rows] = tokens
        for place, part in zip(bound.hidden, hidden, strict=True):
            place[:, :rows] = part
        bound.recording.replay()
        return tuple(part[:, :rows].clone() for part in bound.recording.outputs)

    def _bind(self, rows: int, like: Tensor) -> "_Bound":
        tokens = like.new_zeros(rows)
        hidden = tuple(part.clone() for part in self._network.initial_hidden(rows))
        return _Bound(tokens, hidden, self._record(lambda: self._network.step(tokens, hidden)))


class _Bound(NamedTuple):
    tokens: Tensor
    hidden: Hidden
    recording: Recording


def record_on_cuda(compute: Callable[[], Hidden]) -> Recording:
    """Record a computation on the current CUDA device; other threads may go on using it meanwhile."""
    aside: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_WARM_UPS):
            compute()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = compute()
    return Recording(graph.replay, outputs)
