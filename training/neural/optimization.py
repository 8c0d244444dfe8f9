"""Optimisers, learning-rate schedules, weight averages, output penalties and dropout schedules.

Weights averaged over many updates predict better than the weights of a single update. The output
penalties are AR and TAR (Merity et al. 2017, "Revisiting activation regularization"). Dropout may
rise over a run (Morerio et al. 2017, "curriculum dropout").
"""

import bisect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from models.neural.cells import Dropout
from models.neural.network import Network
from training.neural.settings import TrainSettings

_CYCLE_START = 1 / 25  # of the peak, Smith's usual ratio
_MIN_RATE_SHARE = 0.01


class Schedule:
    """Progress of a run by updates and time, and the learning rate at each point.

    Args:
        settings: limits of the run and learning-rate schedule.
        steps_per_epoch: number of updates per pass over the text.
        clock: monotonic clock in seconds.
    """

    def __init__(self, settings: TrainSettings, *, steps_per_epoch: int, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._epoch_steps = settings.epochs * steps_per_epoch
        self._steps = min(self._epoch_steps, settings.max_steps or self._epoch_steps)
        self._clock = clock
        self._started = clock()

    def resume_from(self, seconds: float) -> None:
        """Continue from the seconds that the run took before its interruption."""
        self._started = self._clock() - seconds

    @property
    def seconds(self) -> float:
        """Seconds since the run began, without pauses."""
        return self._clock() - self._started

    def done(self, step: int, *, seconds: float | None = None) -> float:
        """Return the completed share of the run, by updates or by time, whichever is larger.

        Args:
            step: number of updates.
            seconds: seconds since the start of the run; None reads the clock.
        """
        share = step / self._steps
        if self._settings.max_minutes is not None:
            seconds = self.seconds if seconds is None else seconds
            share = max(share, seconds / (60 * self._settings.max_minutes))
        return min(share, 1.0)

    def reached(self, step: int) -> Literal["max_minutes", "max_steps", "epochs"]:
        """Return the limit that ended the run after `step` updates."""
        if step < self._steps:
            return "max_minutes"
        return "epochs" if step >= self._epoch_steps else "max_steps"

    def learning_rate(self, done: float) -> float:
        """Return the learning rate at a share of the run; see `TrainSettings.schedule`."""
        settings, peak = self._settings, self._settings.learning_rate
        if done < settings.warmup:
            lowest = _CYCLE_START if settings.schedule == "one-cycle" else 0.0
            risen = done / settings.warmup
            return peak * max(lowest + (1 - lowest) * risen, _MIN_RATE_SHARE)
        since = (done - settings.warmup) / (1 - settings.warmup)
        if settings.schedule == "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * since))
        if settings.schedule == "one-cycle":
            turn = 1 - settings.anneal
            if done < turn:
                return peak * (1 - (1 - _CYCLE_START) * ((done - settings.warmup) / (turn - settings.warmup)))
            return peak * (_CYCLE_START * (1 - done) / (1 - turn) if turn < 1 else _CYCLE_START)
        if settings.schedule == "step":
            return peak * settings.decay_factor ** bisect.bisect_right(settings.decay_at, done)
        return peak


def make_optimizer(network: nn.Module, settings: TrainSettings) -> Optimizer:
    """Create the optimiser of the settings for all parameters.

    Weight decay applies to matrices only. Biases, gains of norms and learned initial states set levels;
    their decay would only shift the network's outputs.
    """
    groups = [
        {"params": parameters, "weight_decay": decay}
        for is_matrix, decay in ((True, settings.weight_decay), (False, 0.0))
        if (parameters := [p for p in network.parameters() if (p.ndim == 2) == is_matrix])
    ]
    rate = settings.learning_rate
    if settings.optimizer == "sgd":
        return SGD(groups, lr=rate, momentum=settings.momentum, fused=True)
    if settings.optimizer == "rmsprop":
        return RMSprop(groups, lr=rate, momentum=settings.momentum, foreach=True)
    adam = AdamW if settings.optimizer == "adamw" else Adam
    return adam(groups, lr=rate, betas=settings.betas, fused=True)


class WeightAverage:
    """Average of the weights over updates, as the settings select.

    `ema` is an exponential moving average (Polyak and Juditsky 1992, with decay). Its decay is at most
    (1 + t) / (10 + t) after t updates, to discount the random start. `nt-asgd` is the plain mean of all
    updates since the first validation that was worse than the best validation more than `nonmonotone`
    validations before it (Merity et al. 2018, algorithm 1).

    Args:
        network: network with the parameters; every average except `none` copies them.
        settings: selects the average.

    Attributes:
        updates: number of updates in the average; 0 before it begins.
    """

    def __init__(self, network: nn.Module, settings: TrainSettings) -> None:
        self.updates = 0
        self._settings = settings
        # not their `data`: a module of cuDNN gives its parameters new memory whenever it is moved
        self._parameters: list[Tensor] = list(network.parameters())
        self._averages: list[Tensor] = []
        self._validations: list[float] = []
        self._triggered = False

    @property
    def is_pending(self) -> bool:
        """True until `nt-asgd` begins; until then, a worse validation starts it instead of ending the run."""
        return self._settings.average == "nt-asgd" and not self.updates

    @torch.no_grad()
    def add(self, done: float) -> None:
        """Add the weights after an update; `done` is the completed share of the run."""
        is_ema = self._settings.average == "ema"
        if not (done >= self._settings.average_start if is_ema else self._triggered):
            return
        if self.updates:
            share = 1 / (self.updates + 1)
            if is_ema:
                share = 1 - min(self._settings.average_decay, (1 + self.updates) / (10 + self.updates))
            torch._foreach_lerp_(self._averages, self._parameters, share)
        else:
            self._averages = [parameter.detach().clone() for parameter in self._parameters]
        self.updates += 1

    def record_validation(self, perplexity: float) -> None:
        """Record a validation; `nt-asgd` begins when validations stop improving."""
        if self._triggered or self._settings.average != "nt-asgd":
            return
        earlier = self._validations[: -self._settings.nonmonotone]
        self._triggered = bool(earlier) and perplexity > min(earlier)
        self._validations.append(perplexity)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the network's weights by the average inside the block, if it has begun."""
        if not self.updates:
            yield
            return
        with torch.no_grad():
            own = [parameter.clone() for parameter in self._parameters]
            torch._foreach_copy_(self._parameters, self._averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, own)

    def state(self) -> dict[str, Any]:
        """Return the state for resuming: tensors and numbers."""
        return {
            "updates": self.updates,
            "averages": self._averages,
            "validations": self._validations,
            "triggered": self._triggered,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state`."""
        self.updates = state["updates"]
        self._averages = [
            average.to(parameter.device)
            for average, parameter in zip(state["averages"], self._parameters, strict=False)
        ]
        self._validations = list(state["validations"])
        self._triggered = state["triggered"]


class OutputPenalties:
    """Penalty α · mean(d²) + β · mean((h_t − h_{t−1})²) on outputs h, where d is h after dropout.

    Backward hooks add the closed-form gradients to the gradient of the loss, so one backward pass is
    enough. The reported loss excludes the penalty.

    Args:
        network: network with the penalised outputs [T, B, W].
        settings: α, `activation_penalty`, and β, `slowness_penalty`.

    Attributes:
        scale: factor of both terms; 1, except in a process with a part of the batch.
    """

    def __init__(self, network: Network, settings: TrainSettings) -> None:
        self.scale = 1.0
        self._activation = settings.activation_penalty
        self._slowness = settings.slowness_penalty
        if self._activation or self._slowness:
            network.output_dropout.register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, given: tuple[Tensor], dropped: Tensor) -> None:
        outputs = given[0]
        if not module.training or not outputs.requires_grad:
            return
        if self._activation:
            activity, share = dropped.detach(), 2 * self.scale * self._activation / dropped.numel()
            _hook_gradient(dropped, lambda gradient: torch.add(gradient, activity, alpha=share))
        if self._slowness and len(outputs) > 1:
            raw = outputs.detach()
            _hook_gradient(outputs, lambda gradient: self._with_slowness(gradient, raw))

    def _with_slowness(self, gradient: Tensor, outputs: Tensor) -> Tensor:
        changes = outputs[1:] - outputs[:-1]
        share = 2 * self.scale * self._slowness / changes.numel()
        gradient = gradient.clone()
        gradient[1:].add_(changes, alpha=share)
        gradient[:-1].sub_(changes, alpha=share)
        return gradient


def _hook_gradient(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    tensor.register_hook(change)  # type: ignore[no-untyped-call]  # torch ships it untyped


class DropoutSchedule:
    """Dropout shares that rise linearly over a run (Morerio et al. 2017, "curriculum dropout").

    Dropout of weights and of entire tokens is constant.

    Args:
        network: network with the final shares in its layers.
        start: initial fraction of the final shares, from 0 to 1.
    """

    def __init__(self, network: Network, *, start: float) -> None:
        self._layers = [(module, module.share) for module in network.modules() if isinstance(module, Dropout)]
        self._start = start

    def set_progress(self, done: float) -> None:
        """Set the dropout shares for the completed share of the run."""
        for layer, share in self._layers:
            layer.share = share * (self._start + (1 - self._start) * done)
