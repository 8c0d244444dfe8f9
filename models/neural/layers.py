"""Network bodies: stacked recurrent layers, feed-forward layers over a window, and attention.

Attention over a window of a body's last outputs bounds the state. The scores are one of three formulas:
additive (Bahdanau et al. 2015), multiplicative (Luong et al. 2015) and scaled dot products (Vaswani et
al. 2017). Each maps outputs [T, B, H] and visible outputs [M + T, B, H] to scores [B, T, M + T]; scores
outside the band j ∈ [t, t + M] are meaningless.
"""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from models.neural.cells import Body, Cell, CellState, Dropout, Hidden, MinGRU, TorchCell
from models.neural.config import NetworkConfig
from models.neural.constants import MAX_TANH_VALUES


class LayeredBody(Body):
    """Stack of layers.

    If configured, each layer's input and the last layer's output are normalised (Ba et al. 2016), and a
    layer's input is added to its output if their widths are equal (He et al. 2016).

    Attributes:
        norms: normalisations of each layer's input and the last layer's output.
        skips: whether each layer's input is added to its output.
    """

    def _connect_layers(self, config: NetworkConfig) -> None:
        """Create normalisations and dropout after the layers: optimizers number parameters."""
        self.width = config.hidden_size
        sizes = config.layer_inputs
        self.norms = nn.ModuleList(
            [nn.LayerNorm(size) if config.layer_norm else nn.Identity() for size in [*sizes, self.width]]
        )
        self.skips = config.skips
        self.dropout = Dropout(config.between_layers, variational=config.variational)

    def _run_layers(self, outputs: Tensor, run: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Return the last layer's outputs; `run` takes a layer's number and inputs."""
        for number, skip in enumerate(self.skips):
            below = self.norms[number](outputs)
            above = run(number, self.dropout(below) if number else below)
            outputs = above + outputs if skip else above
        normalised: Tensor = self.norms[-1](outputs)
        return normalised


class Recurrent(LayeredBody):
    """Stacked recurrent layers, with a state tensor [L, B, H] for each part of a cell."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        minimal = config.cell == "mingru"
        self.cells = nn.ModuleList(
            MinGRU(size, config.hidden_size) if minimal else TorchCell(config, size)
            for size in config.layer_inputs
        )
        self._connect_layers(config)
        self.parts = config.cell_states
        learned = range(self.parts if config.learned_state else 0)
        self.initial = nn.ParameterList(torch.zeros(config.layers, 1, self.width) for _ in learned)

    @override
    def start(self, batch: int) -> Hidden:
        if len(self.initial):
            return tuple(part.repeat(1, batch, 1) for part in self.initial)
        like = next(self.parameters())
        return tuple(like.new_zeros(len(self.cells), batch, self.width) for _ in range(self.parts))

    @override
    def forward(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        return self._read(inputs, carried, one=False)

    @override
    def step(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        return self._read(inputs, carried, one=True)

    def _read(self, inputs: Tensor, carried: Hidden, *, one: bool) -> tuple[Tensor, Hidden]:
        states: list[CellState] = []

        def run(number: int, below: Tensor) -> Tensor:
            cell = cast("Cell", self.cells[number])
            above, after = (cell.step if one else cell)(below, tuple(part[number] for part in carried))
            states.append(after)
            return above

        outputs = self._run_layers(inputs, run)
        return outputs, tuple(torch.stack(parts) for parts in zip(*states, strict=True))


class FeedForward(LayeredBody):
    """f(W [x_{t-n+1}; …; x_t] + b), and more layers above (Bengio et al. 2003).

    With many layers, skips and normalisation it is Sun and Iyyer's modern variant (2021). The state
    is the last n - 1 vectors [n - 1, B, E], which are zeros before a text begins.

    Args:
        config: the shape; n is its `window`.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.before = config.window - 1
        self.embedding_size = config.embedding_size
        self.layers = nn.ModuleList([nn.Linear(size, config.hidden_size) for size in config.layer_inputs])
        self._connect_layers(config)
        self.activation = torch.tanh if config.activation == "tanh" else functional.relu

    @override
    def start(self, batch: int) -> Hidden:
        like = next(self.parameters())
        return (like.new_zeros(self.before, batch, self.embedding_size),)

    @override
    def forward(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        seen = torch.cat([carried[0], inputs])
        width = len(inputs)
        outputs = torch.cat([seen[k : k + width] for k in range(self.before + 1)], dim=-1)
        outputs = self._run_layers(outputs, lambda number, below: self.activation(self.layers[number](below)))
        return outputs, (seen[width:],)


class AdditiveScores(nn.Module):
    """v · tanh(W q + U k + b) (Bahdanau et al. 2015).

    Args:
        width: H.
        size: size of the added vectors.
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.queries = nn.Linear(width, size)
        self.keys = nn.Linear(width, size, bias=False)
        self.reduction = nn.Linear(size, 1, bias=False)

    def forward(self, outputs: Tensor, seen: Tensor) -> Tensor:
        """Return scores [B, T, M + T], 0 outside the band."""
        times, batch = outputs.shape[:2]
        window = len(seen) - times + 1
        queries = self.queries(outputs)
        # [T, B, window, size], no copy
        keys = self.keys(seen).unfold(0, window, 1).transpose(2, 3)
        step = max(1, MAX_TANH_VALUES // max(1, batch * window * queries.shape[2]))
        banded = torch.cat(
            [
                self.reduction(torch.tanh(queries[t : t + step, :, None] + keys[t : t + step]))[..., 0]
                for t in range(0, times, step)
            ]
        )
        columns = torch.arange(times, device=seen.device)[:, None] + torch.arange(window, device=seen.device)
        scores = banded.new_zeros(batch, times, len(seen))
        return scores.scatter(2, columns.expand(batch, -1, -1), banded.transpose(0, 1))


class MultiplicativeScores(nn.Module):
    """W q · U k / √size (Vaswani et al. 2017), or q · W k (Luong et al. 2015, "general").

    Args:
        width: H.
        size: size of the multiplied vectors; None for the second formula, without U and root.
    """

    def __init__(self, width: int, size: int | None) -> None:
        super().__init__()
        self.queries = nn.Linear(width, size or width, bias=False)
        self.keys = nn.Linear(width, size, bias=False) if size else nn.Identity()
        self.scale = 1 / math.sqrt(size) if size else 1.0

    def forward(self, outputs: Tensor, seen: Tensor) -> Tensor:
        """Return scores [B, T, M + T]."""
        queries: Tensor = self.queries(outputs) * self.scale
        keys: Tensor = self.keys(seen)
        return queries.transpose(0, 1) @ keys.permute(1, 2, 0)


class AttentionBody(Body):
    """h_t + P Σ α_j h_j over the last n outputs h_j of a body, including h_t; α is a softmax of scores.

    The state is the body's state, the n - 1 previous outputs [n - 1, B, W], and the number of them
    that are filled [1, B, 1].

    Args:
        inner: the body.
        config: the shape; n is its `attention_window`.
    """

    def __init__(self, inner: Body, config: NetworkConfig) -> None:
        super().__init__()
        self.inner = inner
        self.width = inner.width
        self.before = config.attention_window - 1
        size = config.attention_size
        self.scores: nn.Module
        if config.attention == "additive":
            self.scores = AdditiveScores(self.width, size)
        else:
            self.scores = MultiplicativeScores(self.width, size if config.attention == "scaled" else None)
        self.projection = nn.Linear(self.width, self.width, bias=False)

    @override
    def start(self, batch: int) -> Hidden:
        like = self.projection.weight
        memory = like.new_zeros(self.before, batch, self.width), like.new_zeros(1, batch, 1)
        return (*self.inner.start(batch), *memory)

    @override
    def forward(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        outputs, inner = self.inner(inputs, carried[:-2])
        attended, memory = self._attend(outputs, carried[-2:])
        return attended, (*inner, *memory)

    @override
    def step(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        output, inner = self.inner.step(inputs, carried[:-2])
        attended, memory = self._attend(output[None], carried[-2:])
        return attended[0], (*inner, *memory)

    def _attend(self, outputs: Tensor, memory: Hidden) -> tuple[Tensor, Hidden]:
        past, filled = memory
        seen = torch.cat([past, outputs])  # [n - 1 + T, B, W]
        masked = ~self._visible(len(outputs), filled)
        scores = self.scores(outputs, seen).masked_fill(masked, -torch.inf)
        context = torch.softmax(scores, dim=2) @ seen.transpose(0, 1).to(scores.dtype)  # [B, T, W]
        attended = outputs + self.projection(context.transpose(0, 1))
        return attended, (seen[len(outputs) :], (filled + len(outputs)).clamp(max=self.before))

    def _visible(self, times: int, filled: Tensor) -> Tensor:
        """Return the mask [B, T, n - 1 + T] of outputs in the window, itself included."""
        columns = torch.arange(self.before + times, device=filled.device)
        # distance of each output from each column [T, n - 1 + T]
        distances = self.before + torch.arange(times, device=filled.device)[:, None] - columns
        is_filled = columns >= self.before - filled[0]  # [B, n - 1 + T]
        return ((distances >= 0) & (distances <= self.before)) & is_filled[:, None]
