"""Dynamic evaluation: a network that continues learning from the text it is evaluated on.

Every segment of tokens is scored before the network learns from it, so the result is that of a
predictor that has seen the past only. For offline measurement: the adapted weights are discarded.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.errors import InvalidInputError
from models.language_model import LanguageModel
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.vocabulary import BOS
from training.corpus import EncodedCorpus
from training.evaluation.breakdown import (
    LogProbRows,
    SampledMean,
    entropies_of,
    renormalised,
    sample_positions,
    sampled_mean,
)
from training.evaluation.evaluate import CorpusScores
from training.progress import Progress

MAX_SEGMENT = 10_000


class DynamicSettings(NamedTuple):
    """Hyperparameters of dynamic evaluation.

    Attributes:
        stretch: tokens per segment: scored first, then learnt from in one step.
        learning_rate: η; step size of a weight with an average gradient.
        decay: λ; share of the way back to its trained value that such a weight moves per step.
    """

    stretch: int = 20
    learning_rate: float = 3e-3
    decay: float = 2e-3


def dynamic_evaluation(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    *,
    settings: DynamicSettings | None = None,
    entropies: "SampledEntropies | None" = None,
    progress: Progress,
) -> CorpusScores:
    """Score a text, read as one stream, with a copy of the model that learns from each segment after it.

    After each segment, w ← w − η g / (r + r̄) + λ min(r / r̄, 1/λ) (w₀ − w), where g is the gradient of the
    segment's mean loss, r the root of g's mean square over all segments so far, r̄ the mean of r over all
    weights, and w₀ the trained weight. Source: Krause et al. 2018, equations 5 to 8, who take r from the
    training text, and a constant instead of r̄ in the denominator; Mikolov et al. 2010 for plain SGD.

    Args:
        model: a neural model; it is not changed.
        corpus: encoded with the model's tokenizer.
        settings: segment length, learning rate and decay.
        entropies: collects entropies of sampled predictions, with the weights at that time.
        progress: counts tokens.

    Raises:
        InvalidInputError: the model has no gradient, or a setting is out of range.
    """
    settings = _check_settings(settings or DynamicSettings())
    network = _copy_network(model)
    updater = _WeightUpdater(network, settings)
    text = corpus.with_boundaries().astype(np.int64)
    hidden = network.initial_hidden(1)
    log_probs: list[Tensor] = []
    num_scored = 0
    progress.start(f"dynamic evaluation of the {model.family}", corpus.num_tokens)
    with _gradients_in_evaluation_mode():
        for start in range(0, len(text) - 1, settings.stretch):
            span = torch.from_numpy(text[start : start + settings.stretch + 1]).to(hidden[0].device)
            outputs, carried = network(span[:-1, None], hidden)
            hidden = tuple(part.detach() for part in carried)
            predicted = span[1:] != BOS
            if not predicted.any():
                continue
            scores = network.target_log_probs(outputs[predicted, 0], span[1:][predicted])
            log_probs.append(scores.detach())
            if entropies is not None:
                entropies.add(network, outputs[predicted, 0].detach(), num_scored)
            num_scored += len(scores)
            updater.learn(-scores.mean())
            progress.advance(len(scores))
    progress.finish()
    scored = torch.cat(log_probs).cpu().numpy() if log_probs else np.zeros(0, dtype=np.float32)
    targets = text[1:][text[1:] != BOS]
    return CorpusScores(scored, targets, None)


class SampledEntropies:
    """Entropies of predictions at sampled positions of a text read once.

    Args:
        num_tokens: predicted tokens of the text.
        most: maximum number of positions; see `training.evaluation.breakdown.sample_positions`.
    """

    def __init__(self, num_tokens: int, most: int) -> None:
        self._positions = sample_positions(num_tokens, most)
        self._values: list[LogProbRows] = []

    def add(self, network: Network, outputs: Tensor, first: int) -> None:
        """Add the entropies at the sampled positions among n predicted tokens.

        Args:
            network: with its current weights.
            outputs: network outputs before each token [n, H].
            first: index of the first token in the text.
        """
        start, end = np.searchsorted(self._positions, [first, first + len(outputs)])
        if start < end:
            chosen = torch.from_numpy(self._positions[start:end] - first).to(outputs.device)
            with torch.no_grad():
                log_probs = network.log_probs(outputs[chosen]).float().cpu().numpy()
            self._values.append(entropies_of(renormalised(log_probs)))

    def mean(self) -> SampledMean:
        """Return the mean entropy so far."""
        return sampled_mean(np.concatenate(self._values) if self._values else np.zeros(0))


class _WeightUpdater:
    """Updates a network's weights after each segment.

    Args:
        network: to update in place.
        settings: learning rate and decay.
    """

    def __init__(self, network: Network, settings: DynamicSettings) -> None:
        self._settings = settings
        self._weights = [weight for weight in network.parameters() if weight.requires_grad]
        self._trained = [weight.detach().clone() for weight in self._weights]
        self._squares = [torch.zeros_like(weight) for weight in self._weights]
        self._steps = 0

    def learn(self, loss: Tensor) -> None:
        """Take one gradient step on a segment's mean loss, and decay towards the trained weights."""
        rate, decay = self._settings.learning_rate, self._settings.decay
        gradients = torch.autograd.grad(loss, self._weights, allow_unused=True, materialize_grads=True)
        self._steps += 1
        with torch.no_grad():
            for square, gradient in zip(self._squares, gradients, strict=True):
                square.addcmul_(gradient, gradient)
            roots = [(square / self._steps).sqrt_() for square in self._squares]
            mean = sum(float(root.sum()) for root in roots) / sum(root.numel() for root in roots)
            mean = max(mean, 1e-30)
            for weight, start, root, gradient in zip(
                self._weights, self._trained, roots, gradients, strict=True
            ):
                decay_step = (root * (decay / mean)).clamp_(max=1.0).mul_(start - weight)
                weight.addcdiv_(gradient, root + mean, value=-rate).add_(decay_step)


def _check_settings(settings: DynamicSettings) -> DynamicSettings:
    if not 1 <= settings.stretch <= MAX_SEGMENT:
        raise InvalidInputError(
            f"stretch is {settings.stretch}, it must be from 1 to {MAX_SEGMENT:,}", parameter="stretch"
        )
    for name, value, most in (("learning_rate", settings.learning_rate, 1.0), ("decay", settings.decay, 1.0)):
        if not 0 <= value <= most:
            raise InvalidInputError(f"{name} is {value}, it must be from 0 to {most:g}", parameter=name)
    return settings


def _copy_network(model: LanguageModel[Any]) -> Network:
    """Return a trainable copy of the model's network, in evaluation mode."""
    if not isinstance(model, NeuralModel):
        raise InvalidInputError(
            f"dynamic evaluation learns by gradients, which a model of the family {model.family} has none of: "
            "it takes a neural model",
            parameter="dynamic",
        )
    return copy.deepcopy(model.network).eval().requires_grad_()


@contextlib.contextmanager
def _gradients_in_evaluation_mode() -> Iterator[None]:
    """Turn cuDNN off: its recurrent kernels have gradients in training mode only, which applies dropout."""
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        yield
