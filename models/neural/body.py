"""What stands between the embedding and the output layer, and what it carries from token to token."""

from abc import ABC, abstractmethod
from typing import TypeAlias

from torch import Tensor, nn

Hidden: TypeAlias = tuple[Tensor, ...]
"""What a network carries from token to token: tensors [·, B, ·]. The first is the body's output at the
last token, [1, B, W], from which the next one is predicted; the others are what the body carries."""


class Body(nn.Module, ABC):
    """Vectors of tokens to vectors from which the next token is predicted.

    Attributes:
        width: W, of an output.
    """

    width: int

    @abstractmethod
    def start(self, batch: int) -> Hidden:
        """What is carried before any token: tensors whose dimension 1 is the batch."""

    @abstractmethod
    def forward(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        """Read T vectors a row.

        Args:
            inputs: [T, B, E].
            carried: up to the first of them; it is not changed.

        Returns:
            The outputs [T, B, W] and what is carried on.
        """

    def step(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        """Read one vector a row, [B, E]: as `forward`, but may be faster for few rows on a CPU.

        Returns:
            The output [B, W] and what is carried on.
        """
        outputs, carried = self.forward(inputs[None], carried)
        return outputs[0], carried
