"""Telling the true token from noise: noise-contrastive estimation and negative sampling."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from models.neural.output.layer import OutputLayer
from training.neural.losses.candidates import SampledLogits
from training.neural.losses.full_softmax import require_softmax
from training.neural.losses.in_place import logistic_rows
from training.neural.losses.loss import Loss, LossResult
from training.neural.losses.noise import NoiseSampler


class _Contrastive(Loss):
    """−log σ(true token's score) − Σ log(1 − σ(drawn token's score)), the drawn ones shared by all positions."""

    name: str
    corrected: bool  # whether a score is the logit less the log of how often noise is expected to be it

    def __init__(self, sampler: NoiseSampler) -> None:
        self._sampler = sampler

    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> LossResult:
        """Add the gradients of the mean loss to the output layer's; see `Loss`."""
        layer = require_softmax(output, loss=self.name)
        drawn = self._sampler.draw().ids
        correction = self._sampler.log_expected if self.corrected else torch.zeros_like(layer.bias)
        chosen = SampledLogits(layer, drawn, -correction[drawn], precision=precision)
        gradient = torch.empty_like(features)
        loss = 0.0
        for cut in chosen.slices(len(ids)):
            scores = chosen.target_logits(features[cut], ids[cut]) - correction[ids[cut]]
            logits = chosen.drawn_logits(features[cut])
            losses = logistic_rows(logits, scale=1 / len(ids)) + functional.softplus(-scores)
            of_target = torch.sigmoid(-scores) / -len(ids)
            gradient[cut] = chosen.backward(features[cut], ids[cut], of_target, logits)
            loss += float(losses.sum(dtype=torch.float64))
        chosen.finish()
        return LossResult(loss / len(ids), gradient)

    def state(self) -> dict[str, Any]:
        """Where the draws are."""
        return self._sampler.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on drawing from there."""
        self._sampler.restore(state)


class NoiseContrastive(_Contrastive):
    """Noise-contrastive estimation (Gutmann and Hyvärinen 2010; Mnih and Teh 2012) with shared noise.

    Logits are taken for log-probabilities, the log-normaliser fixed at 0; the biases can shift it as a
    whole. So it trains models whose unnormalised scores are usable. A score is the logit less
    the logarithm of how often noise is expected to be that token; true tokens stay among the noise.

    Args:
        sampler: what draws, without replacement; only expected frequencies enter the estimate.
    """

    name, corrected = "nce", True


class NegativeSampling(_Contrastive):
    """Negative sampling (Mikolov et al. 2013): scores are the logits themselves.

    They are not log-probabilities: the best ones are log p(w | context) − log of how often noise
    is expected to be w. Evaluation renormalises them by the exact softmax as it does any logits, which
    is off by the noise where more than one token is likely: end with another loss (`train.sampled_share`).

    Args:
        sampler: what draws, without replacement.
    """

    name, corrected = "negative-sampling", False
