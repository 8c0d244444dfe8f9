"""What stands between the embedding and the output layer, and what it carries from token to token."""

from abc import ABC, abstractmethod
from typing import TypeAlias

from torch import Tensor, nn

Hidden: TypeAlias = tuple[Tensor, ...]
"""What is carried from token to token: tensors whose dimension 1 is the batch. The first is the
output at the last token, [1, B, W], from which the next one is predicted; the rest is the body's own."""


class Body(nn.Module, ABC):
    """Vectors of tokens to vectors from which the next token is predicted.

    Attributes:
        width: W, of an output.
    """

    width: int

    @abstractmethod
    def zero_hidden(self, batch: int) -> Hidden:
        """What is carried before any token."""

    @abstractmethod
    def forward(self, inputs: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """Read T vectors a row.

        Args:
            inputs: [T, B, E].
            hidden: what was carried up to the first of them; it is not changed.

        Returns:
            The outputs [T, B, W] and what is carried on.
        """

    def step(self, inputs: Tensor, hidden: Hidden) -> Hidden:
        """Read one vector a row, [B, E]: the same as `forward`, faster for few rows on a CPU."""
        return self.forward(inputs[None], hidden)[1]
