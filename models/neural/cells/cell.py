"""What a recurrent layer can do: read T tokens, or one."""

from abc import ABC, abstractmethod
from typing import TypeAlias

from torch import Tensor, nn

CellState: TypeAlias = tuple[Tensor, ...]
"""What a layer carries from token to token, each [B, H]; the first is its output at the last token."""


class Cell(nn.Module, ABC):
    """One recurrent layer.

    Attributes:
        parts: how many tensors are carried.
    """

    parts: int

    @abstractmethod
    def forward(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        """Read T inputs a row.

        Args:
            inputs: [T, B, I].
            carried: up to the first of them; it is not changed.

        Returns:
            The outputs [T, B, H] and what is carried on.
        """

    def step(self, inputs: Tensor, carried: CellState) -> CellState:
        """Read one input a row, [B, I]; the output is the first part of what is carried on."""
        return self.forward(inputs[None], carried)[1]
