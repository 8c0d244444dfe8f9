"""Averages of the weights over many updates, which predict better than the weights of any one of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from training.neural.settings import TrainSettings


class WeightAverage:
    """The average that the settings name.

    `ema` is an exponential moving average (Polyak and Juditsky 1992; decayed). While it is young, its
    decay is (1 + t) / (10 + t) after t updates, so that it forgets the random start. `nt-asgd` is the plain
    mean of all updates since the first validation that was no better than the best of those more than
    `nonmonotone` before it (Merity et al. 2018, algorithm 1).

    Args:
        network: whose parameters are averaged; an average has a copy of them, and `none` does not.
        settings: which average.

    Attributes:
        updates: that are in the average; 0 while it has not begun.
    """

    def __init__(self, network: nn.Module, settings: TrainSettings) -> None:
        self.updates = 0
        self._settings = settings
        self._parameters = [parameter.data for parameter in network.parameters()]
        self._averages: list[Tensor] = []
        self._validations: list[float] = []
        self._triggered = False

    @property
    def is_pending(self) -> bool:
        """Whether `nt-asgd` has still to begin; what is worse until then is a reason to begin, not to stop."""
        return self._settings.average == "nt-asgd" and not self.updates

    @torch.no_grad()
    def add(self, done: float) -> None:
        """Take in the weights after an update, `done` being the share of the run behind it."""
        if not self._wanted(done):
            return
        if self.updates:
            torch._foreach_lerp_(self._averages, self._parameters, self._share_of_newest())
        else:
            self._averages = [parameter.clone() for parameter in self._parameters]
        self.updates += 1

    def record_validation(self, perplexity: float) -> None:
        """Take note of a validation; `nt-asgd` begins when there is no more progress."""
        if self._triggered or self._settings.average != "nt-asgd":
            return
        earlier = self._validations[: -self._settings.nonmonotone]
        self._triggered = bool(earlier) and perplexity > min(earlier)
        self._validations.append(perplexity)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """For a while, the network has the average for its weights, if there is one."""
        if not self.updates:
            yield
            return
        own = [parameter.clone() for parameter in self._parameters]
        self._set(self._averages)
        try:
            yield
        finally:
            self._set(own)

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs: tensors and numbers."""
        return {
            "updates": self.updates,
            "averages": self._averages,
            "validations": self._validations,
            "triggered": self._triggered,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` said."""
        self.updates = state["updates"]
        self._averages = [
            average.to(parameter.device)
            for average, parameter in zip(state["averages"], self._parameters, strict=False)
        ]
        self._validations = list(state["validations"])
        self._triggered = state["triggered"]

    def _wanted(self, done: float) -> bool:
        if self._settings.average == "ema":
            return done >= self._settings.average_start
        return self._triggered

    def _share_of_newest(self) -> float:
        if self._settings.average == "nt-asgd":
            return 1 / (self.updates + 1)
        return 1 - min(self._settings.average_decay, (1 + self.updates) / (10 + self.updates))

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(self._parameters, values)
