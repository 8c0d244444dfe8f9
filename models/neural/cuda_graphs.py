"""CUDA graphs: one step of a network, captured once and replayed with a single launch.

For a small network, launching its kernels one by one takes longer than computing them. A step is
captured once for each of a few batch sizes; rows are padded to the next size, so few graphs serve
all.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from models.neural.cells import Hidden
from models.neural.network import Network

MAX_GRAPH_ROWS = 1024
"""Beyond so many rows the device is busy with the step itself, and nothing is recorded."""

_WARM_UPS = 3  # what torch's documentation advises: libraries choose their kernels and take their memory at first calls

CaptureGraph: TypeAlias = Callable[[Callable[[], Hidden]], "CapturedGraph"]


class CapturedGraph(NamedTuple):
    """A computation that can be done again.

    Attributes:
        replay: does it with whatever now lies in the tensors that it reads.
        outputs: where its results lie after that, until the next time.
    """

    replay: Callable[[], None]
    outputs: Hidden


class CudaGraphSteps:
    """`Network.step` of up to `MAX_GRAPH_ROWS` rows, recorded and replayed.

    Args:
        network: in evaluation mode; its parameters must stay where they are.
        record: how a computation is recorded.
    """

    def __init__(self, network: Network, record: CaptureGraph) -> None:
        self._network = network
        self._record = record
        self._bound: dict[int, _CapturedStep] = {}

    def step(self, tokens: Tensor, hidden: Hidden) -> Hidden:
        """Consume one token a row, ids [B].

        Args:
            tokens: ids [B], B at most `MAX_GRAPH_ROWS`.
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

    def _bind(self, rows: int, like: Tensor) -> "_CapturedStep":
        tokens = like.new_zeros(rows)
        hidden = tuple(part.clone() for part in self._network.initial_hidden(rows))
        return _CapturedStep(tokens, hidden, self._record(lambda: self._network.step(tokens, hidden)))


class _CapturedStep(NamedTuple):
    tokens: Tensor
    hidden: Hidden
    recording: CapturedGraph


def capture_on_cuda(compute: Callable[[], Hidden]) -> CapturedGraph:
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
    return CapturedGraph(graph.replay, outputs)
