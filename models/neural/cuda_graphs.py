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

_WARM_UPS = 3  # what torch's documentation advises: libraries choose their kernels and take their memory at first calls

CaptureGraph: TypeAlias = Callable[[Callable[[], Hidden]], "CapturedGraph"]


class CapturedGraph(NamedTuple):
    """A captured computation.

    Attributes:
        replay: repeats it with the present content of its input tensors.
        outputs: tensors of its results, valid until the next replay.
    """

    replay: Callable[[], None]
    outputs: Hidden


class CudaGraphSteps:
    """`Network.step` of up to `MAX_GRAPH_ROWS` rows as captured CUDA graphs.

    Args:
        network: in evaluation mode; its parameters must not move.
        capture: captures a computation.
    """

    def __init__(self, network: Network, capture: CaptureGraph) -> None:
        self._network = network
        self._record = capture
        self._bound: dict[int, tuple[Tensor, Hidden, CapturedGraph]] = {}

    def step(self, tokens: Tensor, hidden: Hidden) -> Hidden:
        """Consume one token a row, ids [B].

        Args:
            tokens: ids [B], B at most `MAX_GRAPH_ROWS`.
            hidden: the state; it is not changed.

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
        """The tensors of tokens and state that a captured step reads, and the step."""
        tokens = like.new_zeros(rows)
        hidden = tuple(part.clone() for part in self._network.initial_hidden(rows))
        return tokens, hidden, self._record(lambda: self._network.step(tokens, hidden))


def capture_on_cuda(compute: Callable[[], Hidden]) -> CapturedGraph:
    """Capture a computation on the current CUDA device, which other threads may use meanwhile."""
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
