"""The softmax over the true token and drawn ones, which stand for all others."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.neural.output.layer import OutputLayer
from training.neural.losses.candidates import SampledLogits
from training.neural.losses.full_softmax import require_softmax
from training.neural.losses.in_place import softmax_rows
from training.neural.losses.loss import Loss, LossResult
from training.neural.losses.noise import NoiseSampler


class SampledSoftmax(Loss):
    """−log of the true token's share among itself and drawn tokens (Jean et al. 2015), shared by all positions.

    A drawn token's logit has the logarithm of its probability of being drawn taken off, so that the sum
    over drawn tokens is expected to be the sum over all but the true one; the true one, where it is
    drawn too, is removed (Blanc and Rendle 2018). With as many samples as tokens it is the full softmax.

    Args:
        sampler: what draws, without replacement.
    """

    def __init__(self, sampler: NoiseSampler) -> None:
        self._sampler = sampler

    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> LossResult:
        """Add the gradients of the mean loss to the output layer's; see `Loss`."""
        layer = require_softmax(output, loss="sampled")
        drawn, log_expected = self._sampler.draw()
        place = drawn.new_full((len(layer.bias),), -1)  # of each token among those drawn
        place[drawn] = torch.arange(len(drawn), device=drawn.device)
        chosen = SampledLogits(layer, drawn, -log_expected, precision=precision)
        gradient = torch.empty_like(features)
        loss = 0.0
        for cut in chosen.slices(len(ids)):
            own = chosen.target_logits(features[cut], ids[cut])[:, None].to(precision)
            logits = torch.cat([chosen.drawn_logits(features[cut]), own], dim=1)
            _remove(logits, place[ids[cut]])
            last = torch.full_like(ids[cut], len(drawn))
            rows = softmax_rows(logits, last, scale=1 / len(ids))
            of_target, of_drawn = logits[:, -1].float(), logits[:, :-1]
            gradient[cut] = chosen.backward(features[cut], ids[cut], of_target, of_drawn)
            loss += float(rows.losses.sum(dtype=torch.float64))
        chosen.finish()
        return LossResult(loss / len(ids), gradient)

    def state(self) -> dict[str, Any]:
        """Where the draws are."""
        return self._sampler.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on drawing from there."""
        self._sampler.restore(state)


def _remove(logits: Tensor, columns: Tensor) -> None:
    """Give one column of each row the probability 0; none where it is −1."""
    rows = (columns >= 0).nonzero().squeeze(1)
    logits[rows, columns[rows]] = -math.inf
