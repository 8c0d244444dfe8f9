"""Cross-entropy over the vocabulary and its gradient, in bounded memory."""

import torch
from torch import Tensor
from torch.nn import functional

from models.neural.network import RecurrentNetwork
from models.vocabulary import BOS
from training.neural.precision import autocast

LOGITS = 1 << 22
"""Logits held at once; beyond the caches, fresh pages for them cost more than the products."""


def backward(network: RecurrentNetwork, outputs: Tensor, targets: Tensor, *, precision: torch.dtype) -> float:
    """Add the gradient of the mean loss to the parameters' gradients.

    The output layer is taken in slices of positions, each forward and backward at once, so that
    logits [N, V] never exist as a whole; then the recurrent layers follow.

    Args:
        network: in training mode.
        outputs: the top layer's [T, B, hidden], with the graph that made them.
        targets: the ids that follow, [T, B]; `<s>` is not predicted.
        precision: of the output layer's matrix products.

    Returns:
        The loss: mean nats per predicted token, 0 where there is none.
    """
    predicted = targets.flatten() != BOS
    ids = targets.flatten()[predicted]
    if not len(ids):
        return 0.0
    flat = outputs.flatten(0, 1)[predicted]  # [N, hidden]
    leaf = flat.detach().requires_grad_()
    total = torch.zeros((), device=outputs.device)
    size = max(1, LOGITS // network.vocab_size)
    for start in range(0, len(ids), size):
        with autocast(precision, outputs.device):
            logits = network.logits(leaf[start : start + size])
        loss = functional.cross_entropy(logits.float(), ids[start : start + size], reduction="sum") / len(ids)
        loss.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
        total += loss.detach()
    flat.backward(leaf.grad)  # type: ignore[no-untyped-call]  # likewise
    return float(total)
