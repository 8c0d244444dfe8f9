"""Interface of losses: compute the mean loss of an output layer and add its gradients."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.neural.softmax import OutputLayer


class LossResult(NamedTuple):
    """Loss of a segment of text, and its gradient.

    Attributes:
        loss: the minimised value, mean per predicted token; the cross-entropy in nats if the loss is over
            the whole vocabulary.
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
            ids: the target tokens [N]; never `<s>`.
            precision: of the matrix products.

        Raises:
            InvalidInputError: the loss cannot train such a layer.
        """

    @property
    def is_final(self) -> bool:
        """Whether the run ends with this loss; early stopping must wait for the final one."""
        return True

    def set_progress(self, done: float) -> None:  # noqa: B027 - most losses ignore it
        """Set the completed share of the run, from 0 to 1; called before each update."""

    def state(self) -> dict[str, Any]:
        """Return the state for exact resuming, plain numbers and dictionaries; empty for a deterministic loss."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most losses have no state
        """Restore the result of `state`."""


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Add to a parameter's gradient; a missing one becomes `gradient` itself, without a copy."""
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
