"""Network bodies: stacked recurrent layers, and feed-forward layers over a fixed window of tokens."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from models.neural.cells import Body, Cell, CellState, Dropout, Hidden, make_cell
from models.neural.config import NetworkConfig


class LayeredBody(Body):
    """Stack of layers.

    If configured, each layer's input and the last layer's output are normalised (Ba et al. 2016), and a
    layer's input is added to its output if both have the same width (He et al. 2016).

    Attributes:
        norms: normalisations of each layer's input and of the last layer's output.
        skips: whether each layer's input is added to its output.
    """

    def _connect_layers(self, config: NetworkConfig) -> None:
        """Create normalisations and dropout; must follow the layers, since optimizers number parameters in order."""
        self.width = config.hidden_size
        sizes = config.layer_inputs
        self.norms = nn.ModuleList(
            [nn.LayerNorm(size) if config.layer_norm else nn.Identity() for size in [*sizes, self.width]]
        )
        self.skips = config.skips
        self.dropout = Dropout(config.between_layers, variational=config.variational)

    def _run_layers(self, outputs: Tensor, run: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Return the last layer's outputs from the first layer's inputs; `run` takes a layer's number and inputs."""
        for number, skip in enumerate(self.skips):
            below = self.norms[number](outputs)
            above = run(number, self.dropout(below) if number else below)
            outputs = above + outputs if skip else above
        normalised: Tensor = self.norms[-1](outputs)
        return normalised


class Recurrent(LayeredBody):
    """Stacked recurrent layers, whose state has a tensor [L, B, H] for each part of a cell.

    Args:
        config: the shape.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        cells = [make_cell(config, size) for size in config.layer_inputs]
        self.cells = nn.ModuleList(cells)
        self._connect_layers(config)
        self.parts = cells[0].parts
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
        return self._read(inputs, carried, lambda cell, *given: cell(*given))

    @override
    def step(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        return self._read(inputs, carried, lambda cell, *given: cell.step(*given))

    def _read(
        self,
        inputs: Tensor,
        carried: Hidden,
        read: Callable[[Cell, Tensor, CellState], tuple[Tensor, CellState]],
    ) -> tuple[Tensor, Hidden]:
        states: list[CellState] = []

        def run(number: int, below: Tensor) -> Tensor:
            before = tuple(part[number] for part in carried)
            above, after = read(cast("Cell", self.cells[number]), below, before)
            states.append(after)
            return above

        outputs = self._run_layers(inputs, run)
        return outputs, tuple(torch.stack(parts) for parts in zip(*states, strict=True))


class FeedForward(LayeredBody):
    """f(W [x_{t-n+1}; …; x_t] + b), and more layers above (Bengio et al. 2003).

    With many layers, skips and normalisation it is the modern variant of Sun and Iyyer (2021). The state
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
