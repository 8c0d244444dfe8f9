"""Losses by name, and a loss that is replaced by another one during a run."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from models.errors import InvalidInputError
from models.neural.adaptive_softmax import AdaptiveSoftmax
from models.neural.softmax import Softmax
from training.neural.losses.sampled import (
    NegativeSampling,
    NoiseContrastive,
    NoiseSampler,
    SampledSoftmax,
    noise_weights,
)
from training.neural.losses.softmax import AdaptiveCrossEntropy, FullSoftmax, Loss, LossResult
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

    @override
    def __call__(self, features: Tensor, ids: Tensor, *, precision: torch.dtype) -> LossResult:
        return self._current(features, ids, precision=precision)

    @property
    @override
    def is_final(self) -> bool:
        return self._current is self._losses[1]

    @override
    def set_progress(self, done: float) -> None:
        self._current = self._losses[done >= self._share]

    @override
    def state(self) -> dict[str, Any]:
        return {"first": self._losses[0].state(), "then": self._losses[1].state()}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        for loss, name in zip(self._losses, ("first", "then"), strict=True):
            loss.restore(state[name])


_SAMPLED_LOSSES: dict[str, Callable[[Softmax, NoiseSampler], Loss]] = {
    "sampled": SampledSoftmax,
    "nce": NoiseContrastive,
    "negative-sampling": NegativeSampling,
}


def make_loss(
    settings: TrainSettings, output: Softmax | AdaptiveSoftmax, counts: Tensor, *, seed: int
) -> Loss:
    """Make the loss that settings name.

    Args:
        settings: how to train.
        output: the layer to be trained.
        counts: how often each token occurs in the training text [V].
        seed: of a loss's random draws; the same in every process of a run, as they share the draws.

    Raises:
        InvalidInputError: the loss cannot train such a layer.
    """
    if isinstance(output, AdaptiveSoftmax):
        if problem := settings.problem_with("adaptive"):
            raise InvalidInputError(problem, parameter="train.loss")
        return AdaptiveCrossEntropy(output)
    full = FullSoftmax(output, self_normalise=settings.self_normalise)
    if settings.loss == "softmax":
        return full
    weights = noise_weights(counts.cpu().numpy(), settings.noise)
    sampler = NoiseSampler(weights, samples=settings.samples, seed=seed, device=counts.device)
    sampled = _SAMPLED_LOSSES[settings.loss](output, sampler)
    if settings.sampled_share == 1:
        return sampled
    return SwitchedLoss(sampled, full, share=settings.sampled_share)
