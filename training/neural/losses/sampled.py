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
"""Most logits in memory at a time."""


class SampledLogits:
    """An output layer restricted to sampled tokens and to each position's target.

    It accumulates gradients, slice by slice; `finish` adds them to the layer's.

    Args:
        layer: the output layer.
        noise: sampled noise, distinct ids [S].
        shift: added to the sampled tokens' logits [S].
        precision: of the matrix products.
    """

    def __init__(self, layer: Softmax, noise: Tensor, shift: Tensor, *, precision: torch.dtype) -> None:
        self._weight, self._bias = layer.weight.detach(), layer.bias.detach()
        self._layer = layer
        self._drawn = noise
        self._precision = precision
        self._vectors = self._weight[noise].to(precision)
        self._biases = (self._bias[noise] + shift).to(precision)
        self._grad_vectors = torch.zeros_like(self._vectors, dtype=torch.float32)
        self._grad_biases = torch.zeros_like(self._biases, dtype=torch.float32)
        self._grad_weight, self._grad_bias = torch.zeros_like(self._weight), torch.zeros_like(self._bias)

    def slices(self, positions: int) -> Iterator[slice]:
        """Yield slices of the positions, small enough that their logits fit into bounded memory."""
        size = max(1, MAX_SAMPLED_LOGITS // (len(self._drawn) + 1))
        return (slice(start, start + size) for start in range(0, positions, size))

    def drawn_logits(self, features: Tensor) -> Tensor:
        """Return shifted logits [N, S] of the sampled tokens after vectors [N, E]."""
        return torch.addmm(self._biases, features.to(self._precision), self._vectors.T)

    def target_logits(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return logits [N] of ids [N] after vectors [N, E], float32."""
        return (features.float() * self._weight[targets]).sum(-1) + self._bias[targets]

    def backward(self, features: Tensor, targets: Tensor, of_target: Tensor, of_drawn: Tensor) -> Tensor:
        """Propagate gradients of logits [N] and [N, S]; return those of the features [N, E], float32."""
        inputs = features.to(self._precision)
        self._grad_vectors += of_drawn.T @ inputs
        self._grad_biases += of_drawn.sum(0, dtype=torch.float32)
        self._grad_weight.index_add_(0, targets, features.float() * of_target[:, None])
        self._grad_bias.index_add_(0, targets, of_target)
        return (of_drawn @ self._vectors).float().addcmul_(self._weight[targets], of_target[:, None])

    def finish(self) -> None:
        """Add the gradients to the layer's, as dense matrices for the optimisers, zero for unused tokens."""
        self._grad_weight.index_add_(0, self._drawn, self._grad_vectors)
        self._grad_bias.index_add_(0, self._drawn, self._grad_biases)
        accumulate(self._layer.weight, self._grad_weight)
        accumulate(self._layer.bias, self._grad_bias)


NoiseName = Literal["unigram", "log-uniform"]
NoiseWeights: TypeAlias = npt.NDArray[np.float64]

_POWER = 0.75
"""Flattens the frequencies (Mikolov et al. 2013)."""


class NoiseDraw(NamedTuple):
    """A sample of noise tokens.

    Attributes:
        ids: distinct [S].
        log_expected: log of each token's inclusion probability [S], at most 0.
    """

    ids: Tensor
    log_expected: Tensor


class NoiseSampler:
    """Sampler of a number of tokens without replacement, with probabilities in proportion to weights.

    Systematic sampling (Madow 1949): inclusion probabilities, which sum to S, are accumulated in a
    shuffled order, and the points u, u + 1, u + 2, … for a random u in [0, 1) select tokens. So a
    draw takes one random number, the probabilities are exact, and a token with a weight for more
    than 1 is in every sample.

    Args:
        weights: relative frequency of tokens in samples [V], not all 0; that of `<s>` is 0.
        samples: tokens in a sample, S; all tokens with a weight if they are fewer.
        seed: of the draws.
        device: of the samples.
    """

    def __init__(
        self, weights: NoiseWeights, *, samples: int, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        expected = inclusion_probabilities(weights, samples)
        self.samples = round(float(expected.sum()))
        self._generator = np.random.default_rng(
            [seed, 0x6E6F697365]
        )  # differs from the stream's, which has the same seed
        drawable = np.flatnonzero(expected)
        self._order = np.random.default_rng(0).permutation(drawable)  # the same whatever the seed
        self._ends = np.cumsum(expected[self._order])
        self._device = torch.device(device)
        with np.errstate(divide="ignore"):
            self.log_expected = torch.as_tensor(np.log(expected), dtype=torch.float32, device=self._device)

    def draw(self) -> NoiseDraw:
        """Draw the next sample."""
        points = self._generator.random() + np.arange(self.samples)
        slots = np.searchsorted(self._ends, points, side="right")
        # rounding may put two points into one token, or the last past the end
        ids = torch.as_tensor(
            np.unique(self._order[np.minimum(slots, len(self._order) - 1)]), device=self._device
        )
        return NoiseDraw(ids, self.log_expected[ids])

    def state(self) -> dict[str, Any]:
        """Return the random generator's state."""
        return dict(self._generator.bit_generator.state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._generator.bit_generator.state = dict(state)


def noise_weights(counts: npt.ArrayLike, kind: NoiseName) -> NoiseWeights:
    """Compute the relative frequency of tokens in noise samples [V].

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
    """Compute inclusion probabilities [V], at most 1, with a given sum, and below 1 in proportion to weights.

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
    """−log σ(target's score) − Σ log(1 − σ(noise token's score)), with noise shared by all positions."""

    name: str
    corrected: bool  # whether scores are logits less the log of the inclusion probability

    def __init__(self, sampler: NoiseSampler) -> None:
        self._sampler = sampler

    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> LossResult:
        """Add the gradients of the mean loss to the output layer's; see `Loss`."""
        layer = require_softmax(output, loss=self.name)
        noise = self._sampler.draw().ids
        correction = self._sampler.log_expected if self.corrected else torch.zeros_like(layer.bias)
        sampled = SampledLogits(layer, noise, -correction[noise], precision=precision)
        gradient = torch.empty_like(features)
        loss = 0.0
        for cut in sampled.slices(len(ids)):
            scores = sampled.target_logits(features[cut], ids[cut]) - correction[ids[cut]]
            logits = sampled.drawn_logits(features[cut])
            losses = logistic_rows(logits, scale=1 / len(ids)) + functional.softplus(-scores)
            of_target = torch.sigmoid(-scores) / -len(ids)
            gradient[cut] = sampled.backward(features[cut], ids[cut], of_target, logits)
            loss += float(losses.sum(dtype=torch.float64))
        sampled.finish()
        return LossResult(loss / len(ids), gradient)

    def state(self) -> dict[str, Any]:
        """Return the sampler's state."""
        return self._sampler.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the sampler's state."""
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

    They are not log-probabilities: at the optimum they are log p(w | context) − log(inclusion
    probability of w). Evaluation renormalises them by the exact softmax like any logits, so the noise
    distribution stays in where several tokens are probable: end with another loss (`train.sampled_share`).

    Args:
        sampler: draws noise without replacement.
    """

    name, corrected = "negative-sampling", False


class SampledSoftmax(Loss):
    """Softmax over the target and sampled tokens (Jean et al. 2015), which all positions share.

    A sampled token's logit is reduced by the log of its inclusion probability, so that the expected sum
    over the sample is the sum over all tokens but the target; the target is removed from the sample
    (Blanc and Rendle 2018). With as many samples as tokens it is the full softmax.

    Args:
        sampler: draws noise without replacement.
    """

    def __init__(self, sampler: NoiseSampler) -> None:
        self._sampler = sampler

    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> LossResult:
        """Add the gradients of the mean loss to the output layer's; see `Loss`."""
        layer = require_softmax(output, loss="sampled")
        noise, log_expected = self._sampler.draw()
        column = noise.new_full((len(layer.bias),), -1)  # [V], of each token in the sample
        column[noise] = torch.arange(len(noise), device=noise.device)
        sampled = SampledLogits(layer, noise, -log_expected, precision=precision)
        gradient = torch.empty_like(features)
        loss = 0.0
        for cut in sampled.slices(len(ids)):
            own = sampled.target_logits(features[cut], ids[cut])[:, None].to(precision)
            logits = torch.cat([sampled.drawn_logits(features[cut]), own], dim=1)
            _remove(logits, column[ids[cut]])
            last = torch.full_like(ids[cut], len(noise))
            rows = softmax_rows(logits, last, scale=1 / len(ids))
            of_target, of_drawn = logits[:, -1].float(), logits[:, :-1]
            gradient[cut] = sampled.backward(features[cut], ids[cut], of_target, of_drawn)
            loss += float(rows.losses.sum(dtype=torch.float64))
        sampled.finish()
        return LossResult(loss / len(ids), gradient)

    def state(self) -> dict[str, Any]:
        """Return the sampler's state."""
        return self._sampler.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the sampler's state."""
        self._sampler.restore(state)


def _remove(logits: Tensor, columns: Tensor) -> None:
    """Set the logit in one column of each row to minus infinity; −1 stands for no column."""
    rows = (columns >= 0).nonzero().squeeze(1)
    logits[rows, columns[rows]] = -math.inf
