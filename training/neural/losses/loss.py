"""What a loss can do: say how wrong an output layer is and fill in the gradients."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from models.neural.output.layer import OutputLayer


class Learned(NamedTuple):
    """What a stretch of text taught.

    Attributes:
        loss: what was minimised, mean per predicted token; for the full softmax its cross-entropy in nats.
        gradient: of the loss with respect to the features [N, E], in their type.
    """

    loss: float
    gradient: Tensor


class Loss(Protocol):
    """A training criterion over an output layer."""

    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> Learned:
        """Add the gradients of the mean loss to the output layer's parameters.

        Args:
            output: the layer.
            features: [N, E], N ≥ 1, without a graph.
            ids: what follows each, [N]; never `<s>`.
            precision: of the matrix products.
        """
        ...
