"""CUDA graphs: one step of a network, captured once and replayed with a single launch.

For a small network, launching the kernels one by one takes longer than their computation. A step is
captured once for each of a few batch sizes; batches are padded to the next size.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from models.neural.cells import Hidden
from models.neural.network import Network

_WARM_UPS = 3  # as torch's documentation recommends: libraries select kernels and allocate memory in their first calls

CaptureGraph: TypeAlias = Callable[[Callable[[], Hidden]], "CapturedGraph"]


class CapturedGraph(NamedTuple):
    """Captured computation.

    Attributes:
        replay: repeats the computation with the current content of its input tensors.
        outputs: result tensors, valid until the next replay.
    """

    replay: Callable[[], None]
    outputs: Hidden


class CudaGraphSteps:
    """`Network.step` of up to `MAX_GRAPH_ROWS` rows as captured CUDA graphs.

    Args:
        network: in evaluation mode; its parameters must stay at their addresses.
        capture: function that captures a computation.
    """

    def __init__(self, network: Network, capture: CaptureGraph) -> None:
        self._network = network
        self._record = capture
        self._bound: dict[int, tuple[Tensor, Hidden, CapturedGraph]] = {}

    def step(self, tokens: Tensor, hidden: Hidden) -> Hidden:
        """Consume one token per row.

        Args:
            tokens: ids [B], B at most `MAX_GRAPH_ROWS`.
            hidden: the state; unchanged.

        Returns:
            The next state, of the same shapes.
        """
        rows = tokens.shape[0]
        size = 1 << max(rows - 1, 0).bit_length()
        if size not in self._bound:
            self._bound[size] = self._bind(size, tokens)
        input_tokens, input_hidden, graph = self._bound[size]
        input_tokens[:rows] = tokens
        for buffer, part in zip(input_hidden, hidden, strict=True):
            buffer[:, :rows] = part
        graph.replay()
        return tuple(part[:, :rows].clone() for part in graph.outputs)

    def _bind(self, rows: int, like: Tensor) -> tuple[Tensor, Hidden, CapturedGraph]:
        """Capture a step; return its input tensors, for tokens and state, and the graph."""
        tokens = like.new_zeros(rows)
        hidden = tuple(part.clone() for part in self._network.initial_hidden(rows))
        return tokens, hidden, self._record(lambda: self._network.step(tokens, hidden))


def capture_on_cuda(compute: Callable[[], Hidden]) -> CapturedGraph:
    """Capture a computation on the current CUDA device, which other threads may use concurrently."""
    side_stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(_WARM_UPS):
            compute()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = compute()
    return CapturedGraph(graph.replay, outputs)
