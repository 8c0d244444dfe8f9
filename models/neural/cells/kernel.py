"""What the layers have in common that torch's own kernels compute."""

from abc import ABC
from typing import cast

import torch
from torch import Tensor, nn

from models.neural.cells.cell import Cell
from models.neural.dropout import drop_weights

SINGLE_LAYER_ARGS = (True, 1, 0.0, True, False, False)
"""How torch's functions are told of one: biases, layers, dropout, for training, both directions, batch first."""


class TorchCell(Cell, ABC):
    """A recurrent layer around one of `nn.RNN`, `nn.LSTM` and `nn.GRU`.

    Args:
        kernel: of one layer; G gates of H outputs that read I inputs.
        weight_drop: share of the hidden-to-hidden weights that is dropped in training.
        orthogonal: whether each gate's hidden-to-hidden matrix starts orthogonal (Saxe et al. 2014).
    """

    def __init__(self, kernel: nn.RNNBase, *, weight_drop: float, orthogonal: bool) -> None:
        super().__init__()
        self.kernel = kernel
        self.weight_drop = weight_drop
        if orthogonal:
            with torch.no_grad():
                for gate in self.weights()[1].chunk(self.weights()[1].shape[0] // kernel.hidden_size):
                    nn.init.orthogonal_(gate)

    @property
    def drops(self) -> bool:
        """Whether weights are dropped now."""
        return self.training and self.weight_drop > 0

    def weights(self) -> list[Tensor]:
        """Of the inputs [G H, I], of the last outputs [G H, H], and two biases [G H]."""
        return cast("list[Tensor]", list(self.kernel._flat_weights))  # noqa: SLF001 - named one by one only

    def dropped_weights(self) -> list[Tensor]:
        """The same with some of the second dropped; on a CUDA device in one piece, as cuDNN wants them."""
        of_inputs, of_hidden, *biases = self.weights()
        weights = [of_inputs, drop_weights(of_hidden, self.weight_drop), *biases]
        if not of_inputs.is_cuda:
            return weights
        piece = torch.cat([weight.flatten() for weight in weights])
        parts = torch.split(piece, [weight.numel() for weight in weights])
        return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
