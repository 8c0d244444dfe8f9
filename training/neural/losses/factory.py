"""Losses by name, and a loss that is replaced by another one during a run."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from models.errors import InvalidInputError
from models.neural.adaptive_softmax import AdaptiveSoftmax
from models.neural.softmax import OutputLayer
from training.neural.losses.loss import Loss, LossResult
from training.neural.losses.sampled import (
    NegativeSampling,
    NoiseContrastive,
    NoiseSampler,
    SampledSoftmax,
    noise_weights,
)
from training.neural.losses.softmax import AdaptiveCrossEntropy, FullSoftmax
from training.neural.settings import TrainSettings


class SwitchedLoss(Loss):
    """A cheap loss for the first share of a run, followed by an exact one.

    Args:
        first: for the first share of the run.
        then: for the rest.
        share: of the run, from 0 to 1, after which the second is used.
    """

    def __init__(self, first: Loss, then: Loss, *, share: float) -> None:
        self._losses = first, then
        self._share = share
        self._current = first

    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> LossResult:
        """Add the gradients of the current loss; see `Loss`."""
        return self._current(output, features, ids, precision=precision)

    @property
    def is_final(self) -> bool:
        """Whether the second loss is in use."""
        return self._current is self._losses[1]

    def set_progress(self, done: float) -> None:
        """Switch once the share is reached."""
        self._current = self._losses[done >= self._share]

    def state(self) -> dict[str, Any]:
        """Return the states of both losses."""
        return {"first": self._losses[0].state(), "then": self._losses[1].state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the states of both losses."""
        for loss, name in zip(self._losses, ("first", "then"), strict=True):
            loss.restore(state[name])


_SAMPLED_LOSSES: dict[str, Callable[[NoiseSampler], Loss]] = {
    "sampled": SampledSoftmax,
    "nce": NoiseContrastive,
    "negative-sampling": NegativeSampling,
}


def make_loss(settings: TrainSettings, output: OutputLayer, counts: Tensor, *, seed: int) -> Loss:
    """Make the loss that settings name.

    Args:
        settings: how to train.
        output: the layer to be trained.
        counts: how often each token occurs in the training text [V].
        seed: of a loss's random draws; the same in every process of a run, as they share the draws.

    Raises:
        InvalidInputError: the loss cannot train such a layer.
    """
    problem = settings.problem_with("adaptive" if isinstance(output, AdaptiveSoftmax) else "softmax")
    if problem is not None:
        raise InvalidInputError(problem, parameter="train.loss")
    if isinstance(output, AdaptiveSoftmax):
        return AdaptiveCrossEntropy()
    full = FullSoftmax(self_normalise=settings.self_normalise)
    if settings.loss == "softmax":
        return full
    weights = noise_weights(counts.cpu().numpy(), settings.noise)
    sampler = NoiseSampler(weights, samples=settings.samples, seed=seed, device=counts.device)
    sampled = _SAMPLED_LOSSES[settings.loss](sampler)
    if settings.sampled_share == 1:
        return sampled
    return SwitchedLoss(sampled, full, share=settings.sampled_share)
