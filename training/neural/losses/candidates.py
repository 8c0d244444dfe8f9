"""What losses over drawn tokens share: logits of few tokens, and the way of gradients back."""

from collections.abc import Iterator

import torch
from torch import Tensor

from models.neural.output.softmax import Softmax
from training.neural.losses.loss import accumulate

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
