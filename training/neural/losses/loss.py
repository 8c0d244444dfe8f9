"""Interface of losses: compute the mean loss of an output layer and add its gradients."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.neural.softmax import OutputLayer


class LossResult(NamedTuple):
    """What a stretch of text taught.

    Attributes:
        loss: what was minimised, mean per predicted token; its cross-entropy in nats where the loss is
            one over the whole vocabulary.
        gradient: of the loss with respect to the features [N, E], in their type.
    """

    loss: float
    gradient: Tensor


class Loss(ABC):
    """A training criterion over an output layer."""

    @abstractmethod
    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> LossResult:
        """Add the gradients of the mean loss to the output layer's parameters.

        Args:
            output: the layer.
            features: [N, E], N ≥ 1, without a graph.
            ids: what follows each, [N]; never `<s>`.
            precision: of the matrix products.

        Raises:
            InvalidInputError: the loss cannot train such a layer.
        """

    @property
    def is_final(self) -> bool:
        """Whether the run ends with this loss; one that gives way to another is no ground for stopping early."""
        return True

    def set_progress(self, done: float) -> None:  # noqa: B027 - most losses need not know
        """Learn how far the run is, a share from 0 to 1; told before each update."""

    def state(self) -> dict[str, Any]:
        """What it takes to continue exactly, in plain numbers and dictionaries; nothing for a loss without chance."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most losses remember nothing
        """Continue from what `state` said."""


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Add to a parameter's gradient, which may take over the memory of what is added."""
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
