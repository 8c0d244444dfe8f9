"""Losses over sampled tokens: sampled softmax, noise-contrastive estimation, negative sampling.

Tokens are drawn without replacement, in proportion to a power of their frequency or log-uniformly,
and shared by all positions of a batch. Sources: Jean et al. (2015); Gutmann and Hyvärinen (2010),
Mnih and Teh (2012); Mikolov et al. (2013).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from models.neural.softmax import OutputLayer, Softmax
from models.vocabulary import BOS
from training.neural.losses.loss import Loss, LossResult, accumulate
from training.neural.losses.softmax import logistic_rows, require_softmax, softmax_rows

MAX_SAMPLED_LOGITS = 1 << 22
"""Logits held at once."""


class SampledLogits:
    """An output layer cut down to drawn tokens and to each position's target.

    Gradients gather here, position by position; `finish` hands them to the layer.

    Args:
        layer: the output layer.
        drawn: noise, ids that are all different [S].
        shift: added to the drawn tokens' logits [S].
        precision: of the matrix products.
    """

    def __init__(self, layer: Softmax, drawn: Tensor, shift: Tensor, *, precision: torch.dtype) -> None:
        self._weight, self._bias = layer.weight.detach(), layer.bias.detach()
        self._layer = layer
        self._drawn = drawn
        self._precision = precision
        self._vectors = self._weight[drawn].to(precision)
        self._biases = (self._bias[drawn] + shift).to(precision)
        self._grad_vectors = torch.zeros_like(self._vectors, dtype=torch.float32)
        self._grad_biases = torch.zeros_like(self._biases, dtype=torch.float32)
        self._grad_weight, self._grad_bias = torch.zeros_like(self._weight), torch.zeros_like(self._bias)

    def slices(self, positions: int) -> Iterator[slice]:
        """So many positions in pieces whose logits fit into bounded memory."""
        size = max(1, MAX_SAMPLED_LOGITS // (len(self._drawn) + 1))
        return (slice(start, start + size) for start in range(0, positions, size))

    def drawn_logits(self, features: Tensor) -> Tensor:
        """Logits of the drawn tokens, shifted [N, S], after vectors [N, E]."""
        return torch.addmm(self._biases, features.to(self._precision), self._vectors.T)

    def target_logits(self, features: Tensor, targets: Tensor) -> Tensor:
        """Logits of ids [N] after vectors [N, E], float32."""
        return (features.float() * self._weight[targets]).sum(-1) + self._bias[targets]

    def backward(self, features: Tensor, targets: Tensor, of_target: Tensor, of_drawn: Tensor) -> Tensor:
        """Take gradients of logits [N] and [N, S]; returns those of the features [N, E], float32."""
        inputs = features.to(self._precision)
        self._grad_vectors += of_drawn.T @ inputs
        self._grad_biases += of_drawn.sum(0, dtype=torch.float32)
        self._grad_weight.index_add_(0, targets, features.float() * of_target[:, None])
        self._grad_bias.index_add_(0, targets, of_target)
        return (of_drawn @ self._vectors).float().addcmul_(self._weight[targets], of_target[:, None])

    def finish(self) -> None:
        """Add the gradients to the layer's: whole matrices, as optimisers want, zero where nothing took part."""
        self._grad_weight.index_add_(0, self._drawn, self._grad_vectors)
        self._grad_bias.index_add_(0, self._drawn, self._grad_biases)
        accumulate(self._layer.weight, self._grad_weight)
        accumulate(self._layer.bias, self._grad_bias)


NoiseName = Literal["unigram", "log-uniform"]
NoiseWeights: TypeAlias = npt.NDArray[np.float64]

_POWER = 0.75
"""Flattens the frequencies (Mikolov et al. 2013)."""


class NoiseDraw(NamedTuple):
    """What was drawn.

    Attributes:
        ids: all different [S].
        log_expected: how often each was to be expected among them, as a logarithm [S], at most 0.
    """

    ids: Tensor
    log_expected: Tensor


class NoiseSampler:
    """Draws a number of tokens without replacement, each with a probability in proportion to its weight.

    Systematic sampling (Madow 1949): probabilities of being drawn, which add up to S, are laid end to
    end in a shuffled order, and a comb with a tooth at every whole number is laid over
    them at random. So one random number makes a draw, the probabilities are exact, and a token whose
    weight calls for more than 1 is drawn every time.

    Args:
        weights: how often tokens are to be drawn relative to each other [V], not all 0; `<s>` never is.
        samples: tokens in a draw, S; all of those with a weight if they are fewer.
        seed: of the draws.
        device: where draws are wanted.
    """

    def __init__(
        self, weights: NoiseWeights, *, samples: int, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        expected = inclusion_probabilities(weights, samples)
        self.samples = round(float(expected.sum()))
        self._generator = np.random.default_rng(
            [seed, 0x6E6F697365]
        )  # not the stream's, which has the same seed
        drawable = np.flatnonzero(expected)
        self._order = np.random.default_rng(0).permutation(drawable)  # the same whatever the seed
        self._ends = np.cumsum(expected[self._order])
        self._device = torch.device(device)
        with np.errstate(divide="ignore"):
            self.log_expected = torch.as_tensor(np.log(expected), dtype=torch.float32, device=self._device)

    def draw(self) -> NoiseDraw:
        """The next draw."""
        teeth = self._generator.random() + np.arange(self.samples)
        places = np.searchsorted(self._ends, teeth, side="right")
        # rounding may put two teeth into one token, or the last past the end
        ids = torch.as_tensor(
            np.unique(self._order[np.minimum(places, len(self._order) - 1)]), device=self._device
        )
        return NoiseDraw(ids, self.log_expected[ids])

    def state(self) -> dict[str, Any]:
        """What it takes to go on drawing the same."""
        return dict(self._generator.bit_generator.state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on as from when `state` was asked."""
        self._generator.bit_generator.state = dict(state)


def noise_weights(counts: npt.ArrayLike, kind: NoiseName) -> NoiseWeights:
    """How often tokens are drawn relative to each other [V].

    Args:
        counts: how often each token occurs in the training text [V].
        kind: `unigram`, the counts to the power of 3/4; `log-uniform`, log((r + 2) / (r + 1)) of the
            rank r by frequency, Zipf's law without the counts.
    """
    weights = np.array(counts, dtype=np.float64)
    if kind == "unigram":
        weights **= _POWER
    else:
        order = np.argsort(-weights, kind="stable")
        weights[order] = np.log1p(1 / (np.arange(len(weights)) + 1.0))
    weights[BOS] = 0
    return weights


def inclusion_probabilities(weights: NoiseWeights, samples: int) -> NoiseWeights:
    """Probabilities [V], at most 1, that add up to a number of samples, in proportion to weights where below 1.

    Args:
        weights: relative [V], not negative, not all 0.
        samples: their sum; lowered to the number of weights that are not 0.
    """
    samples = min(samples, int(np.count_nonzero(weights)))
    expected = np.zeros(len(weights))
    certain = np.zeros(len(weights), dtype=bool)
    while True:
        open_ = ~certain
        expected[open_] = weights[open_] * ((samples - certain.sum()) / max(weights[open_].sum(), 1e-300))
        over = open_ & (expected >= 1)
        expected[over] = 1
        certain |= over
        if not over.any():
            return expected


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
