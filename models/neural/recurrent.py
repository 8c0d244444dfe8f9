"""Network bodies: stacked recurrent layers, and feed-forward layers over a fixed window of tokens."""

from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.neural.cells import Body, Cell, CellState, Dropout, Hidden, make_cell
from models.neural.config import NetworkConfig


class Recurrent(Body):
    """Stacked recurrent layers. Carries [L, B, H], all layers, for every part of a cell.

    If configured, a layer's input is normalised (Ba et al. 2016), as is the last layer's output, and
    is added to the layer's output where the two are of equal width (He et al. 2016).

    Args:
        config: the shape.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.width = config.hidden_size
        sizes = config.layer_inputs
        cells = [make_cell(config, size) for size in sizes]
        self.cells = nn.ModuleList(cells)
        self.norms = nn.ModuleList(
            [nn.LayerNorm(size) if config.layer_norm else nn.Identity() for size in [*sizes, self.width]]
        )
        self.skips = [config.residual and size == self.width for size in sizes]
        self.dropout = Dropout(config.between_layers, variational=config.variational)
        self.parts = cells[0].parts
        learned = range(self.parts if config.learned_state else 0)
        self.initial = nn.ParameterList(torch.zeros(config.layers, 1, self.width) for _ in learned)

    def start(self, batch: int) -> Hidden:
        """Zeros, or the learned initial state."""
        if len(self.initial):
            return tuple(part.repeat(1, batch, 1) for part in self.initial)
        like = next(self.parameters())
        return tuple(like.new_zeros(len(self.cells), batch, self.width) for _ in range(self.parts))

    def forward(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        """Read T vectors a row: [T, B, E] to [T, B, H]."""
        outputs = inputs
        layers: list[CellState] = []
        for number, layer in enumerate(self._layers()):
            below = layer.norm(outputs)
            above, after = layer.cell(
                self.dropout(below) if number else below, tuple(part[number] for part in carried)
            )
            outputs = above + outputs if layer.skip else above
            layers.append(after)
        return self.norms[-1](outputs), _stack_layers(layers)

    def step(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        """Read one vector a row: [B, E] to [B, H]."""
        output = inputs
        layers: list[CellState] = []
        for number, layer in enumerate(self._layers()):
            layers.append(layer.cell.step(layer.norm(output), tuple(part[number] for part in carried)))
            output = layers[-1][0] + output if layer.skip else layers[-1][0]
        return self.norms[-1](output), _stack_layers(layers)

    def _layers(self) -> Iterator["_Layer"]:
        return (
            _Layer(cast("Cell", cell), norm, skip)
            for cell, norm, skip in zip(self.cells, self.norms[:-1], self.skips, strict=True)
        )


class _Layer(NamedTuple):
    cell: Cell
    norm: nn.Module
    skip: bool


def _stack_layers(layers: list[CellState]) -> Hidden:
    return tuple(torch.stack(parts) for parts in zip(*layers, strict=True))


class FeedForward(Body):
    """f(W [x_{t-n+1}; …; x_t] + b), and more layers above (Bengio et al. 2003).

    With many layers, skips and normalisation it is the modern variant of Sun and Iyyer (2021). Carries
    the last n - 1 vectors [n - 1, B, E]; they are zeros before a text begins.

    Args:
        config: the shape; n is its `window`.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.width = config.hidden_size
        self.before = config.window - 1
        self.embedding_size = config.embedding_size
        sizes = config.layer_inputs
        self.layers = nn.ModuleList([nn.Linear(size, self.width) for size in sizes])
        self.norms = nn.ModuleList(
            [nn.LayerNorm(size) if config.layer_norm else nn.Identity() for size in [*sizes, self.width]]
        )
        self.skips = [config.residual and size == self.width for size in sizes]
        self.activation = torch.tanh if config.activation == "tanh" else functional.relu
        self.dropout = Dropout(config.between_layers, variational=config.variational)

    def start(self, batch: int) -> Hidden:
        """Zeros."""
        like = next(self.parameters())
        return (like.new_zeros(self.before, batch, self.embedding_size),)

    def forward(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        """Read T vectors a row: [T, B, E] to [T, B, H], all T at once."""
        seen = torch.cat([carried[0], inputs])
        width = len(inputs)
        outputs = torch.cat([seen[k : k + width] for k in range(self.before + 1)], dim=-1)
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms[:-1], strict=True)):
            below = self.dropout(norm(outputs)) if number else norm(outputs)
            above = self.activation(layer(below))
            outputs = above + outputs if self.skips[number] else above
        return self.norms[-1](outputs), (seen[width:],)
