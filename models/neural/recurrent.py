"""Recurrent layers, one on top of the other."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from models.neural.body import Body, Hidden
from models.neural.cells.cell import Carried, Cell
from models.neural.cells.choice import cell_of
from models.neural.config import NetworkConfig
from models.neural.dropout import Dropout


class Recurrent(Body):
    """The layers. Carries the output [1, B, H] and, of every part of a cell, all layers' [L, B, H].

    Args:
        config: the shape.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.width = config.hidden_size
        sizes = [config.embedding_size] + [config.hidden_size] * (config.layers - 1)
        cells = [cell_of(config, size) for size in sizes]
        self.parts = cells[0].parts
        self.cells = nn.ModuleList(cells)
        self.dropout = Dropout(config.between_layers, variational=config.variational)

    def zero_hidden(self, batch: int) -> Hidden:
        """Zeros."""
        like = next(self.parameters())
        carried = [like.new_zeros(len(self.cells), batch, self.width) for _ in range(self.parts)]
        return (like.new_zeros(1, batch, self.width), *carried)

    def forward(self, inputs: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """Read T vectors a row: [T, B, E] to [T, B, H]."""
        outputs = inputs
        layers: list[Carried] = []
        for number, cell in enumerate(self._cells()):
            below = self.dropout(outputs) if number else outputs
            outputs, carried = cell(below, tuple(part[number] for part in hidden[1:]))
            layers.append(carried)
        return outputs, (outputs[-1:], *_stacked(layers))

    def step(self, inputs: Tensor, hidden: Hidden) -> Hidden:
        """Read one vector a row, [B, E]."""
        output = inputs
        layers: list[Carried] = []
        for number, cell in enumerate(self._cells()):
            layers.append(cell.step(output, tuple(part[number] for part in hidden[1:])))
            output = layers[-1][0]
        return (output[None], *_stacked(layers))

    def _cells(self) -> Iterator[Cell]:
        return (cast("Cell", cell) for cell in self.cells)


def _stacked(layers: list[Carried]) -> Hidden:
    return tuple(torch.stack(parts) for parts in zip(*layers, strict=True))
