"""Dynamic evaluation: a network that keeps learning from the text it is evaluated on.

Every segment is scored before the network learns from it, so predictions
use earlier text only. The evaluation is offline: adapted weights are discarded.
"""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.errors import InputError
from models.language_model import BOS, LanguageModel
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.slot_model import SlotModel
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import CorpusScores
from training.progress import Progress

_SEGMENT_TOKENS = 20
"""Tokens per segment: scored, then used for one update."""

_LEARNING_RATE = 1e-3
"""η; step size of a weight with an average gradient."""

_DECAY = 2e-3
"""λ; share by which such a weight returns to the trained one per step."""


def dynamic_evaluation(
    model: LanguageModel[Any], corpus: EncodedCorpus, *, progress: Progress
) -> CorpusScores:
    """Score a text as one stream with a copy of the model that learns from each scored segment.

    After each segment, w ← w − η g / (r + r̄) + λ min(r / r̄, 1/λ) (w₀ − w), where g is the gradient of the
    segment's mean loss, r the root of g's mean square over all segments so far, r̄ the mean of r over all
    weights, and w₀ the trained weight. Source: Krause et al. 2018, equations 5 to 8, where r comes from the
    training text and a constant replaces r̄ in the denominator; Mikolov et al. 2010 for plain SGD.

    Args:
        model: a neural model; it is not changed.
        corpus: text in the model's tokens.
        progress: counts tokens.

    Raises:
        InputError: the model has no gradient, or reads members of classes.
    """
    if isinstance(model, SlotModel):
        raise InputError("dynamic evaluation cannot read members of classes", param="dynamic")
    if not isinstance(model, NeuralModel):
        raise InputError(
            "dynamic evaluation requires a neural model, because it computes gradients; "
            f"the family of this model is {model.family}",
            param="dynamic",
        )
    network = copy.deepcopy(model.network).eval().requires_grad_()
    updater = _WeightUpdater(network)
    text = corpus.with_boundaries().astype(np.int64)
    hidden = network.initial_hidden(1)
    log_probs = [torch.zeros(0)]
    # cuDNN's recurrent kernels compute gradients only in training mode, with dropout
    with (
        progress.stage(f"dynamic evaluation of the {model.family}", corpus.num_tokens),
        torch.enable_grad(),
        torch.backends.cudnn.flags(enabled=False),
    ):
        for start in range(0, len(text) - 1, _SEGMENT_TOKENS):
            span = torch.from_numpy(text[start : start + _SEGMENT_TOKENS + 1]).to(hidden[0].device)
            outputs, carried = network(span[:-1, None], hidden)
            hidden = tuple(part.detach() for part in carried)
            predicted = (span[1:] != BOS).nonzero()[:, 0]
            if not len(predicted):
                continue
            features = network.features(outputs[predicted, 0])
            scores = network.output.target_log_probs(features, span[1:][predicted])
            log_probs.append(scores.detach().cpu())
            updater.learn(-scores.mean())
            progress.advance(len(scores))
    return CorpusScores(torch.cat(log_probs).numpy(), text[1:][text[1:] != BOS], None)


class _WeightUpdater:
    """Updater of a network's weights, in place, after each segment."""

    def __init__(self, network: Network) -> None:
        self._weights = [weight for weight in network.parameters() if weight.requires_grad]
        self._trained = [weight.detach().clone() for weight in self._weights]
        self._squares = [torch.zeros_like(weight) for weight in self._weights]
        self._steps = 0

    def learn(self, loss: Tensor) -> None:
        """Step by the gradient of a segment's mean loss, and decay towards the trained weights."""
        gradients = torch.autograd.grad(loss, self._weights, allow_unused=True, materialize_grads=True)
        self._steps += 1
        with torch.no_grad():
            for square, gradient in zip(self._squares, gradients, strict=True):
                square.addcmul_(gradient, gradient)
            roots = [(square / self._steps).sqrt_() for square in self._squares]
            total = sum(torch.stack([root.sum() for root in roots]).tolist())
            mean = max(total / sum(root.numel() for root in roots), 1e-30)  # without any gradient
            parts = zip(self._weights, self._trained, roots, gradients, strict=True)
            for weight, start, root, gradient in parts:
                decay_step = (root * (_DECAY / mean)).clamp_(max=1.0).mul_(start - weight)
                weight.addcdiv_(gradient, root + mean, value=-_LEARNING_RATE).add_(decay_step)
