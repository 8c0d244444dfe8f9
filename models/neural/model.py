"""Network in single precision as a language model, on a CPU or a CUDA device.

oneDNN, which computes LSTM layers on CPUs, caches a compiled primitive per shape (pytorch
issue 41486), so memory would grow with each new batch size. Row counts and segment lengths are
therefore padded to a few sizes. oneDNN also repacks the weights at every call, which dominates a
step of few rows: for these the plain cell is two to five times faster.

On CUDA, launching the kernels of a small network's step takes longer than their computation. So a
step is captured once, as a graph, for each of a few batch sizes, to which batches are padded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from models.arrays import Array, FloatArray, ModelBytes, TokenIds
from models.language_model import EOS, ReadResult, Vocabulary, Want
from models.neural.cells import Hidden
from models.neural.constants import (
    GROUP_ROWS,
    GROUP_ROWS_ON_CUDA,
    MAX_CHOICE_LOGITS,
    MAX_GRAPH_ROWS,
    MAX_LOGITS,
    MAX_LOGITS_ON_CUDA,
    PLAIN_CELL_ROWS,
    SEGMENT_STEPS,
    STEPS_MULTIPLE,
)
from models.neural.network import Network, read_network, resolve_device, write_network
from models.neural.network_model import NetworkModel, NeuralState

# as torch's documentation advises: libraries select kernels and allocate memory at first
_WARM_UPS = 3

CapturedGraph: TypeAlias = tuple[Callable[[], None], Hidden]
"""Function that repeats a captured computation on its inputs' current content, and the results."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorState(NeuralState):
    """State of B texts in tensors."""

    @override
    def select(self, rows: TokenIds | slice) -> Self:
        with torch.inference_mode():
            index = torch.as_tensor(rows, dtype=torch.int64, device=self.hidden[0].device)
            return type(self)(tuple(part.index_select(1, index) for part in self.hidden))

    @override
    def assign(self, rows: TokenIds, state: NeuralState) -> None:
        index = torch.as_tensor(rows, device=self.hidden[0].device)  # one copy for all parts
        for part, changed in zip(self.hidden, state.hidden, strict=True):
            part[:, index] = changed

    @override
    def concatenate(self, states: Sequence[NeuralState]) -> Self:
        columns = zip(self.hidden, *(state.hidden for state in states), strict=True)
        with torch.inference_mode():
            return type(self)(tuple(torch.cat(parts, dim=1) for parts in columns))


class CudaGraphSteps:
    """`Network.step` of up to `MAX_GRAPH_ROWS` rows as captured CUDA graphs.

    Args:
        network: in evaluation mode; its parameters must stay at their addresses.
        capture: function that captures a computation.
    """

    def __init__(self, network: Network, capture: Callable[[Callable[[], Hidden]], CapturedGraph]) -> None:
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
            ids = tokens.new_zeros(size)
            state = tuple(part.clone() for part in self._network.initial_hidden(size))
            graph = self._record(lambda: self._network.step(ids, state))
            self._bound[size] = ids, state, graph
        input_tokens, input_hidden, (replay, outputs) = self._bound[size]
        input_tokens[:rows] = tokens
        for buffer, part in zip(input_hidden, hidden, strict=True):
            buffer[:, :rows] = part
        replay()
        return tuple(part[:, :rows].clone() for part in outputs)


def capture_on_cuda(compute: Callable[[], Hidden]) -> CapturedGraph:
    """Capture a computation on the current CUDA device, which other threads may use."""
    side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = compute()
    return graph.replay, outputs


class NeuralModel(NetworkModel):
    """Neural language model for inference in single precision.

    Scores computed differently (step by step or at once, alone or in a batch, CPU or CUDA) agree within
    rounding, not bit by bit. Distributions and features are NumPy arrays on a CPU, torch tensors on CUDA.

    Args:
        network: moved to the device if elsewhere, and switched to evaluation mode.
        vocabulary: tokens of the ids.
        device: `cpu`, `cuda`, `cuda:1`, … or `auto`.

    Attributes:
        network: the network, in evaluation mode; only a trainer may change its parameters.

    Raises:
        InputError: network and vocabulary differ in size, or the device does not exist.
    """

    def __init__(self, network: Network, vocabulary: Vocabulary, *, device: str = "cpu") -> None:
        super().__init__(network.config, network.vocab_size, vocabulary)
        self._device = resolve_device(device)
        own = next(network.parameters()).device
        if (own.type, own.index or 0) != (self._device.type, self._device.index or 0):
            # only then: cuDNN's layers copy weights at each move, earlier graphs read old ones
            network = network.to(self._device)
        self.network = network.eval()
        recordable = self._device.type == "cuda" and self.config.attention == "none"
        self._recorded = CudaGraphSteps(self.network, capture_on_cuda) if recordable else None
        self._is_mapped = False
        self.group_rows = GROUP_ROWS_ON_CUDA if self._device.type == "cuda" else GROUP_ROWS
        self.segment_steps = SEGMENT_STEPS

    @override
    def memory(self) -> ModelBytes:
        tensors = (*self.network.parameters(), *self.network.buffers())
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        size = sum(storage.nbytes() for storage in storages.values())
        if self._device.type != "cpu":
            return ModelBytes(device=size)
        return ModelBytes(mapped=size) if self._is_mapped else ModelBytes(own=size)

    @override
    @torch.inference_mode()
    def empty_state(self, batch: int) -> NeuralState:
        return TensorState(self.network.initial_hidden(batch))

    @override
    @torch.inference_mode()
    def advance(self, state: NeuralState, tokens: TokenIds) -> NeuralState:
        ids = torch.as_tensor(tokens, dtype=torch.int64, device=self._device)
        if self._recorded is not None and 0 < len(ids) <= MAX_GRAPH_ROWS:
            with torch.cuda.device(self._device):
                return TensorState(self._recorded.step(ids, state.hidden))
        return TensorState(advance_one(self.network, ids, state.hidden))

    @override
    @torch.inference_mode()
    def next_log_probs(self, state: NeuralState) -> Array:
        log_probs = self.network.output.log_probs(self.network.features(state.top))
        return log_probs if log_probs.is_cuda else log_probs.numpy()

    @override
    @torch.inference_mode()
    def read(self, state: NeuralState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        return super().read(state, tokens, lengths, want)

    @override
    def read_segment(
        self, tokens: TokenIds, is_read: Any, hidden: Hidden, *, exact: bool
    ) -> tuple[Tensor, Hidden]:
        device, steps = hidden[0].device, len(tokens)
        if steps == 1 and not exact:  # the state after the only token is not needed
            return hidden[0], hidden
        if exact:
            ids = torch.as_tensor(tokens, device=device)
            outputs, after = self._read_exactly(ids, np.count_nonzero(is_read, axis=1), hidden)
        else:  # rows that continue fill the segment; only the last segment is padded
            padding = -steps % STEPS_MULTIPLE
            padded = np.pad(tokens, ((0, padding), (0, 0)), constant_values=EOS)
            ids = torch.as_tensor(padded, device=device)
            outputs, after = advance_many(self.network, ids, hidden)
        return torch.cat([hidden[0], outputs[: steps - 1]]), after

    @override
    def score_outputs(
        self, before: Tensor, steps: TokenIds, rows: TokenIds, ids: TokenIds, *, normalised: bool
    ) -> FloatArray:
        network, outputs = self.network, self.states_before(before, steps, rows).top
        given = torch.as_tensor(ids, device=outputs.device)
        predict = network.output.target_log_probs if normalised else network.output.target_logits
        held = MAX_LOGITS_ON_CUDA if outputs.is_cuda else MAX_LOGITS
        size = max(1, held // (network.vocab_size if normalised else outputs.shape[1]))
        parts = zip(torch.split(outputs, size), torch.split(given, size), strict=True)
        scored = [predict(network.features(part), of_part) for part, of_part in parts]
        return torch.cat(scored).cpu().numpy()

    @override
    def states_before(self, before: Tensor, steps: TokenIds, rows: TokenIds) -> NeuralState:
        step, row = torch.as_tensor(np.stack([steps, rows]), device=before.device)
        return TensorState((before[step, row][None],))

    def _read_exactly(self, ids: Tensor, alive: TokenIds, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """Return outputs [T, B, W] after each token and the state after each row's last."""
        after = tuple(part.clone() for part in hidden)
        outputs = after[0].new_zeros(len(ids), *after[0].shape[1:])
        start = 0
        # no row ends between these steps
        for end in [*(np.flatnonzero(np.diff(alive)) + 1).tolist(), len(alive)]:
            while start < end:
                # on a CPU powers of two, for few shapes
                width = end - start if ids.is_cuda else 1 << ((end - start).bit_length() - 1)
                count, part = int(alive[start]), slice(start, start + width)
                before = tuple(state[:, :count] for state in after)
                if width == 1:
                    changed = advance_one(self.network, ids[start, :count], before)
                    outputs[start, :count] = changed[0][0]
                else:
                    outputs[part, :count], changed = advance_many(self.network, ids[part, :count], before)
                for state, new in zip(after, changed, strict=True):
                    state[:, :count] = new
                start += width
        return outputs, after

    @override
    @torch.inference_mode()
    def score_choices(self, state: NeuralState, rows: TokenIds, tokens: TokenIds) -> FloatArray:
        outputs, network = state.top, self.network
        most = MAX_LOGITS_ON_CUDA if outputs.is_cuda else MAX_CHOICE_LOGITS
        size = max(1, most // network.vocab_size)
        scores = np.empty(len(tokens), np.float32)
        for start in range(0, len(outputs), size):
            cut = slice(*np.searchsorted(rows, [start, start + size]))
            if cut.start == cut.stop:
                continue
            given = np.stack([rows[cut] - start, tokens[cut]])
            here, chosen = torch.as_tensor(given, device=outputs.device)
            features = network.features(outputs[start : start + size])
            scores[cut] = network.output.choice_log_probs(features, here, chosen).cpu().numpy()
        return scores

    @override
    @torch.inference_mode()
    def features(self, state: NeuralState) -> Array:
        features = self.network.features(state.top)
        return features if features.is_cuda else features.numpy()

    def save(self, directory: Path) -> None:
        """Write `config.json` and `model.safetensors` into an existing folder."""
        write_network(self.network, directory)

    @classmethod
    def load(cls, directory: Path, vocabulary: Vocabulary, *, device: str = "cpu") -> "NeuralModel":
        """Load a saved model.

        Args:
            directory: a checkpoint.
            vocabulary: the vocabulary that it was saved with.
            device: see the class.

        Raises:
            ManifestError: a file was not written by `save`, or does not match the vocabulary.
            InputError: the device does not exist.
        """
        model = cls(read_network(directory, vocab_size=len(vocabulary)), vocabulary, device=device)
        model._is_mapped = True
        return model


def advance_one(network: Network, tokens: Tensor, hidden: Hidden) -> Hidden:
    """Read a token per row [B] in evaluation mode; return the next state."""
    if tokens.is_cuda or tokens.shape[0] > PLAIN_CELL_ROWS:
        return advance_many(network, tokens[None], hidden)[1]
    return network.step(tokens, hidden)


def advance_many(network: Network, tokens: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
    """Consume T tokens per row.

    Args:
        network: in evaluation mode.
        tokens: ids [T, B]; the caller uses few different values of T.
        hidden: the state; unchanged.

    Returns:
        The body's outputs [T, B, W] and the next state.
    """
    hidden = tuple(part.contiguous() for part in hidden)  # as cuDNN requires
    rows = tokens.shape[1]
    extra = 0 if tokens.is_cuda else _padded_row_count(rows) - rows
    if extra:
        tokens = functional.pad(tokens, (0, extra))
        hidden = tuple(functional.pad(part, (0, 0, 0, extra)) for part in hidden)
    outputs, after = network(tokens, hidden)
    if extra:
        outputs, after = outputs[:, :rows], tuple(part[:, :rows].contiguous() for part in after)
    return outputs, after


def _padded_row_count(rows: int) -> int:
    """Round up to 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, …: at most a half more, a sixth on average."""
    power = 1 << max(rows - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power
