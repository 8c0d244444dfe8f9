"""Losses over sampled tokens: sampled softmax, noise-contrastive estimation, negative sampling; losses by name.

Tokens are sampled without replacement, in proportion to a power of frequency or
log-uniformly, and shared by a batch's positions. Sources: Jean et al. (2015);
Gutmann and Hyvärinen (2010), Mnih and Teh (2012); Mikolov et al. (2013).
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from models.arrays import Float64s
from models.language_model import BOS
from models.neural.output import AdaptiveSoftmax, Softmax
from training.neural.losses.softmax import (
    AdaptiveCrossEntropy,
    FullSoftmax,
    Loss,
    LossResult,
    accumulate,
    logistic_rows,
    softmax_rows,
)
from training.neural.settings import TrainSettings

MAX_SAMPLED_LOGITS = 1 << 22
"""Maximum logits in memory."""


_POWER = 0.75
"""Exponent that flattens the frequencies (Mikolov et al. 2013)."""

_TOKENS_PER_SAMPLE, _MIN_CHOSEN_SAMPLES = 8, 512
_MIN_RATIO = 4  # of tokens to samples
_EARLIEST_SWITCH, _LATEST_SWITCH = 0.5, 0.9
_MIN_GAIN = 0.01


class NoiseSampler:
    """Sampler of a fixed number of tokens without replacement, by weight.

    Systematic sampling (Madow 1949): inclusion probabilities, which sum to S,
    are accumulated in shuffled order, and points u, u + 1, u + 2, … for a
    random u in [0, 1) select tokens. A draw needs one random number, has exact
    probabilities, and always includes tokens whose probability would exceed 1.

    Args:
        weights: tokens' relative frequency in samples [V], not all 0; 0 for `<s>`.
        samples: tokens per sample, S; lowered to the number of tokens with a weight.
        seed: random seed of the draws.
        device: device of the samples.

    Attributes:
        log_expected: log of each token's inclusion probability [V], at most 0.
        generator: random generator of the draws.
    """

    def __init__(
        self, weights: Float64s, *, samples: int, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        # inclusion probabilities, with the sum S, in proportion to the weights but at most 1
        samples = min(samples, int(np.count_nonzero(weights)))
        expected, certain = np.zeros(len(weights)), np.zeros(len(weights), bool)
        over = ~certain
        while over.any():
            open_ = ~certain
            expected[open_] = weights[open_] * ((samples - certain.sum()) / max(weights[open_].sum(), 1e-300))
            over = open_ & (expected >= 1)
            expected[over] = 1
            certain |= over  # always drawn; the rest is scaled again
        self.samples = round(float(expected.sum()))
        # unlike the generator of the streams, which has the same seed
        self.generator = np.random.default_rng([seed, 0x6E6F697365])
        drawable = np.flatnonzero(expected)
        self._order = np.random.default_rng(0).permutation(drawable)  # independent of the seed
        self._ends = np.cumsum(expected[self._order])
        self._device = torch.device(device)
        with np.errstate(divide="ignore"):
            self.log_expected = torch.as_tensor(np.log(expected), dtype=torch.float32, device=self._device)

    def draw(self) -> Tensor:
        """Draw the next sample: distinct ids in ascending order [S]."""
        points = self.generator.random() + np.arange(self.samples)
        slots = np.searchsorted(self._ends, points, side="right")
        # rounding may put two points into one token, or the last past the end
        ids = np.unique(self._order[np.minimum(slots, len(self._order) - 1)])
        return torch.as_tensor(ids, device=self._device)


def noise_weights(counts: npt.ArrayLike, kind: Literal["unigram", "log-uniform"]) -> Float64s:
    """Compute the relative frequency of tokens in noise samples [V].

    Args:
        counts: each token's count in the training text [V].
        kind: `unigram`, the counts to the power of 3/4; `log-uniform`, log((r + 2) / (r + 1)) of the
            rank r by frequency, which follows Zipf's law.
    """
    weights = np.array(counts, np.float64)
    if kind == "unigram":
        weights **= _POWER
    else:
        order = np.argsort(-weights, kind="stable")
        weights[order] = np.log1p(1 / (np.arange(len(weights)) + 1.0))
    weights[BOS] = 0
    return weights


class _SampledLoss(Loss):
    """Mean loss over each position's target and sampled tokens, shared by all positions.

    Args:
        layer: the output layer.
        sampler: sampler of noise tokens without replacement.
    """

    corrected = True  # scores are logits minus the log of the inclusion probability

    def __init__(self, layer: Softmax, sampler: NoiseSampler) -> None:
        self._layer = layer
        self._sampler = sampler
        self.name = f"{self.name} of {sampler.samples:,} sampled tokens"

    @abstractmethod
    def _gradients(
        self, own: Tensor, drawn: Tensor, targets: Tensor, noise: Tensor, *, cut: slice, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute losses [n], and the gradients of their sum / `count` for both kinds of logits.

        Args:
            own: logits of the targets [n], float32.
            drawn: logits of the sample, corrected if `corrected` [n, S]; overwritten.
            targets: target ids [n].
            noise: ids of the sample, ascending [S].
            cut: the positions among all, of which `changes` tells.
            count: number of all positions.
        """

    @override
    def __call__(self, features: Tensor, ids: Tensor, *, precision: torch.dtype) -> LossResult:
        layer = self._layer
        weight, bias = layer.weight.detach(), layer.bias.detach()
        noise = self._sampler.draw()
        correction = self._sampler.log_expected if self.corrected else torch.zeros_like(bias)
        vectors = weight[noise].to(precision)  # [S, E]
        biases = (bias[noise] - correction[noise]).to(precision)
        grad_vectors = torch.zeros_like(vectors, dtype=torch.float32)
        grad_biases = torch.zeros_like(biases, dtype=torch.float32)
        # dense, as the optimisers require: zero for unused tokens
        grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        gradient = torch.empty_like(features)
        loss = 0.0
        size = max(1, MAX_SAMPLED_LOGITS // (len(noise) + 1))
        for start in range(0, len(ids), size):
            cut = slice(start, start + size)
            given, targets, inputs = features[cut].float(), ids[cut], features[cut].to(precision)
            own = (given * weight[targets]).sum(-1) + bias[targets]
            drawn = torch.addmm(biases, inputs, vectors.T)
            losses, of_own, of_drawn = self._gradients(own, drawn, targets, noise, cut=cut, count=len(ids))
            grad_vectors += of_drawn.T @ inputs
            grad_biases += of_drawn.sum(0, dtype=torch.float32)
            grad_weight.index_add_(0, targets, given * of_own[:, None])
            grad_bias.index_add_(0, targets, of_own)
            gradient[cut] = (of_drawn @ vectors).float().addcmul_(weight[targets], of_own[:, None])
            loss += float(losses.sum(dtype=torch.float64))
        accumulate(layer.weight, grad_weight.index_add_(0, noise, grad_vectors))
        accumulate(layer.bias, grad_bias.index_add_(0, noise, grad_biases))
        return LossResult(loss / len(ids), gradient)

    @override
    def state(self) -> dict[str, Any]:
        return dict(self._sampler.generator.bit_generator.state)

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self._sampler.generator.bit_generator.state = dict(state)


class NoiseContrastive(_SampledLoss):
    """Noise-contrastive estimation (Gutmann and Hyvärinen 2010; Mnih and Teh 2012) with shared noise.

    The loss is −log σ(target's score) − Σ log(1 − σ(noise token's score)). Logits are
    treated as log-probabilities with log-normaliser 0, which biases can shift. So
    the model has usable unnormalised scores. A score is the logit minus the log of
    the token's expected count in the noise; targets are not removed from the noise.
    """

    name = "noise-contrastive estimation"

    @override
    def _gradients(
        self, own: Tensor, drawn: Tensor, targets: Tensor, noise: Tensor, *, cut: slice, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        scores = own - self._sampler.log_expected[targets] if self.corrected else own
        losses = logistic_rows(drawn, scale=1 / count) + functional.softplus(-scores)
        return losses, torch.sigmoid(-scores) / -count, drawn


class NegativeSampling(NoiseContrastive):
    """Negative sampling (Mikolov et al. 2013), the same loss: scores are the logits themselves.

    At the optimum, logits are log p(w | context) − log(inclusion probability of w), not
    log-probabilities. The exact softmax of the evaluation does not remove the noise
    distribution, so end the run with another loss (`train.sampled_share`).
    """

    corrected = False
    name = "negative sampling"


class SampledSoftmax(_SampledLoss):
    """Softmax over the target and sampled tokens (Jean et al. 2015), shared by all positions.

    The logit of a sampled token is reduced by the log of its inclusion probability, and the target
    is removed from the sample, so its expected sum is that over all tokens except
    the target (Blanc and Rendle 2018). With as many samples as tokens, the loss is the full softmax.

    Teachers' probabilities of sampled tokens are divided by the inclusion probability, as the network's
    are, and those of other tokens are left out: in the mean over samples, nothing is.
    """

    name = "softmax"

    @override
    def _gradients(
        self, own: Tensor, drawn: Tensor, targets: Tensor, noise: Tensor, *, cut: slice, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = torch.cat([drawn, own[:, None].to(drawn.dtype)], dim=1)
        columns, is_drawn = _find_drawn(noise, targets[:, None], len(self._layer.bias))
        logits.scatter_(1, columns, logits.gather(1, columns).masked_fill_(is_drawn, -math.inf))
        losses, _ = softmax_rows(logits, torch.full_like(targets, len(noise)), scale=1 / count)
        if self.changes is not None:
            ids, amounts = (part[cut] for part in self.changes)  # [n, K]
            is_target = ids == targets[:, None]
            columns, is_drawn = _find_drawn(noise, ids, len(self._layer.bias))
            columns.masked_fill_(is_target, len(noise))
            shares = self._sampler.log_expected[ids].exp_().masked_fill_(is_target, 1)
            amounts = torch.where(is_drawn | is_target, amounts / -count / shares, 0.0)
            begins = logits.shape[1] * torch.arange(len(ids), device=ids.device)
            logits.put_(columns + begins[:, None], amounts.to(logits.dtype), accumulate=True)
        return losses, logits[:, -1].float(), logits[:, :-1]


def _find_drawn(noise: Tensor, ids: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Return the columns of ids in a sample [S], 0 for others, and whether they are in it."""
    columns = torch.full((vocab_size,), -1, device=noise.device)
    columns[noise] = torch.arange(len(noise), device=noise.device)
    found = columns[ids]
    return found.clamp(min=0), found >= 0


class SwitchedLoss(Loss):
    """A cheap loss for the first share of a run, followed by an exact one.

    Args:
        first: loss of the first share of the run.
        then: loss for the rest of the run.
        share: share of the run, from 0 to 1, that uses the first loss.
        min_gain: if not 0, validations also end the first loss: from half of the run on, one whose perplexity
            is not lower by this share than the one before; and any in a run with time to spare.

    Attributes:
        switched_at: share of the run at which the second loss began; None before that.
    """

    def __init__(self, first: Loss, then: Loss, *, share: float, min_gain: float = 0.0) -> None:
        self._losses = first, then
        self._share = share
        self._min_gain = min_gain
        self._done = 0.0
        self._validated = math.inf  # the perplexity of the last validation
        self.name = first.name
        self.switched_at: float | None = None

    @override
    def __call__(self, features: Tensor, ids: Tensor, *, precision: torch.dtype) -> LossResult:
        current = self._losses[self.is_final]
        current.changes = self.changes
        return current(features, ids, precision=precision)

    @property
    @override
    def is_final(self) -> bool:
        return self.switched_at is not None

    @override
    def set_progress(self, done: float) -> None:
        self._done = done
        if done >= self._share:
            self._switch(done)
        elif not self._min_gain:  # a resumed run may have got more time
            self.switched_at = None

    def _switch(self, done: float) -> None:
        """Begin the second loss, unless it has begun."""
        if self.switched_at is None:
            self.switched_at = done
            first, then = (loss.name for loss in self._losses)
            self.name = f"{first}; from {done:.0%} on, {then}"

    @override
    def record_validation(self, perplexity: float, *, has_spare_time: bool) -> None:
        gains_little = self._done >= _EARLIEST_SWITCH and perplexity > self._validated * (1 - self._min_gain)
        if self._min_gain and self._done and (has_spare_time or gains_little):
            self._switch(self._done)
        self._validated = perplexity

    @override
    def state(self) -> dict[str, Any]:
        own = {"switched_at": self.switched_at, "validated": self._validated}
        return {"first": self._losses[0].state(), "then": self._losses[1].state(), **own}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        for loss, name in zip(self._losses, ("first", "then"), strict=True):
            loss.restore(state[name])
        self._validated = state.get("validated", math.inf)
        if (switched_at := state.get("switched_at")) is not None:
            self._switch(switched_at)


_SAMPLED_LOSSES: dict[str, Callable[[Softmax, NoiseSampler], Loss]] = {
    "auto": SampledSoftmax,
    "sampled": SampledSoftmax,
    "nce": NoiseContrastive,
    "negative-sampling": NegativeSampling,
}


def make_loss(
    settings: TrainSettings, output: Softmax | AdaptiveSoftmax, counts: Tensor, *, seed: int
) -> Loss:
    """Create the loss of settings that can train the output layer, from the text's token counts [V].

    All processes of a run share the seed of the draws.
    """
    if isinstance(output, AdaptiveSoftmax):
        return AdaptiveCrossEntropy(output)
    full = FullSoftmax(output, self_normalise=settings.self_normalise)
    samples, share, min_gain = settings.samples, settings.sampled_share, 0.0
    if settings.loss == "auto":
        samples = min(samples, max(_MIN_CHOSEN_SAMPLES, len(counts) // _TOKENS_PER_SAMPLE))
        share, min_gain = _LATEST_SWITCH, _MIN_GAIN
        # not measured: the output layer's share of the time on a GPU
        if len(counts) < _MIN_RATIO * samples or counts.is_cuda or settings.self_normalise:
            return full
    if settings.loss == "softmax":
        return full
    weights = noise_weights(counts.cpu().numpy(), settings.noise)
    sampler = NoiseSampler(weights, samples=samples, seed=seed, device=counts.device)
    sampled = _SAMPLED_LOSSES[settings.loss](output, sampler)
    return sampled if share == 1 else SwitchedLoss(sampled, full, share=share, min_gain=min_gain)
