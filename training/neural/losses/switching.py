"""One loss for the first share of a run, another for the rest."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.neural.output.layer import OutputLayer
from training.neural.losses.loss import Loss, LossResult


class SwitchedLoss(Loss):
    """A cheap loss while there is much to learn, an exact one to end with.

    Args:
        first: for the first share of the run.
        then: for the rest.
        share: of the run, from 0 to 1, after which the second takes over.
    """

    def __init__(self, first: Loss, then: Loss, *, share: float) -> None:
        self._losses = first, then
        self._share = share
        self._current = first

    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> LossResult:
        """Add the gradients of the loss whose turn it is; see `Loss`."""
        return self._current(output, features, ids, precision=precision)

    @property
    def is_final(self) -> bool:
        """Whether the second has taken over."""
        return self._current is self._losses[1]

    def set_progress(self, done: float) -> None:
        """Switch when the share is behind."""
        self._current = self._losses[done >= self._share]

    def state(self) -> dict[str, Any]:
        """What both need to go on."""
        return {"first": self._losses[0].state(), "then": self._losses[1].state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Let both go on from there."""
        for loss, name in zip(self._losses, ("first", "then"), strict=True):
            loss.restore(state[name])
