"""Cross-entropy over the whole vocabulary."""

import torch
from torch import Tensor

from models.errors import InvalidInputError
from models.neural.output.layer import OutputLayer
from models.neural.output.softmax import Softmax
from training.neural.losses.linear_softmax import linear_softmax
from training.neural.losses.loss import Loss, LossResult, accumulate


class FullSoftmax(Loss):
    """Mean cross-entropy, plus ½ `self_normalise` times the mean squared log-normaliser.

    The second term pulls Σ exp of the logits towards 1, so that logits can stand for log-probabilities
    where a sum over the vocabulary is too slow (Devlin et al. 2014; Chen et al. 2015, "variance regularisation").

    Args:
        self_normalise: weight of the second term; 0 for plain cross-entropy.
    """

    def __init__(self, *, self_normalise: float = 0.0) -> None:
        self.self_normalise = self_normalise

    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> LossResult:
        """Add the gradients of the mean loss to the output layer's; see `Loss`."""
        layer = require_softmax(output, loss="softmax")
        done = linear_softmax(
            layer.weight,
            layer.bias + layer.never_predicted,
            features,
            ids,
            scale=1 / len(ids),
            precision=precision,
            pull=self.self_normalise,
        )
        accumulate(layer.weight, done.grad_weight)
        accumulate(layer.bias, done.grad_bias)
        losses = done.losses
        if self.self_normalise:
            losses = losses + 0.5 * self.self_normalise * done.log_sums.square()
        return LossResult(float(losses.mean(dtype=torch.float64)), done.grad_inputs.to(features.dtype))


def require_softmax(output: OutputLayer, *, loss: str) -> Softmax:
    """The output layer, if it is a softmax over the whole vocabulary.

    Raises:
        InvalidInputError: it is another.
    """
    if isinstance(output, Softmax):
        return output
    raise InvalidInputError(
        f"train.loss {loss} trains neural.output=softmax, not {type(output).__name__}", parameter="train.loss"
    )
