"""From settings to a loss."""

from collections.abc import Callable

from torch import Tensor

from models.errors import InvalidInputError
from models.neural.output.adaptive import AdaptiveSoftmax
from models.neural.output.layer import OutputLayer
from training.neural.losses.adaptive import AdaptiveCrossEntropy
from training.neural.losses.contrastive import NegativeSampling, NoiseContrastive
from training.neural.losses.full_softmax import FullSoftmax
from training.neural.losses.loss import Loss
from training.neural.losses.noise import NoiseSampler, noise_weights
from training.neural.losses.sampled_softmax import SampledSoftmax
from training.neural.losses.switching import SwitchedLoss
from training.neural.settings import TrainSettings

_SAMPLED_LOSSES: dict[str, Callable[[NoiseSampler], Loss]] = {
    "sampled": SampledSoftmax,
    "nce": NoiseContrastive,
    "negative-sampling": NegativeSampling,
}


def make_loss(settings: TrainSettings, output: OutputLayer, counts: Tensor, *, seed: int) -> Loss:
    """The loss that settings name.

    Args:
        settings: how to train.
        output: the layer to be trained.
        counts: how often each token occurs in the training text [V].
        seed: of what a loss draws; in every process of a run the same, as they share the draws.

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
