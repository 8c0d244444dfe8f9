"""One stretch of text: forward, loss, backward."""

import torch
from torch import Tensor

from models.neural.network import Network
from models.vocabulary import BOS
from training.neural.losses.loss import Loss
from training.neural.precision import autocast


def backward(
    network: Network, outputs: Tensor, targets: Tensor, loss: Loss, *, precision: torch.dtype
) -> float:
    """Add the gradient of the mean loss to the parameters' gradients.

    Args:
        network: in training mode.
        outputs: the body's [T, B, W], with the graph that made them.
        targets: the ids that follow, [T, B]; `<s>` is not predicted.
        loss: what is minimised.
        precision: of matrix products.

    Returns:
        The loss: mean per predicted token, 0 where there is none.
    """
    predicted = targets != BOS
    ids = targets[predicted]
    if not len(ids):
        return 0.0
    with autocast(precision, outputs.device):
        features = network.features(outputs)[predicted]  # [N, E]
    learned = loss(network.output, features.detach(), ids, precision=precision)
    features.backward(learned.gradient)  # type: ignore[no-untyped-call]  # torch ships it untyped
    return learned.loss
