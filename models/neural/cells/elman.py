"""The simple recurrent network (Elman 1990; as a language model: Mikolov et al. 2010)."""

import torch
from torch import Tensor, nn

from models.neural.cells.cell import CellState
from models.neural.cells.kernel import SINGLE_LAYER_ARGS, TorchCell
from models.neural.config import ActivationName


class Elman(TorchCell):
    """h ← f(W x + U h + b).

    Carries (h,).

    Args:
        input_size: I.
        hidden_size: H.
        activation: f.
        weight_drop: share of U that is dropped in training.
        orthogonal: whether U starts orthogonal.
    """

    parts = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        activation: ActivationName,
        weight_drop: float,
        orthogonal: bool,
    ) -> None:
        kernel = nn.RNN(input_size, hidden_size, nonlinearity=activation)
        super().__init__(kernel, weight_drop=weight_drop, orthogonal=orthogonal)
        self.with_tanh = activation == "tanh"

    def forward(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        """Read T inputs a row: [T, B, I] to [T, B, H]."""
        before = carried[0][None]
        if self.drops:
            compute = torch.rnn_tanh if self.with_tanh else torch.rnn_relu
            outputs, h = compute(inputs, before, self.dropped_weights(), *SINGLE_LAYER_ARGS)
        else:
            outputs, h = self.kernel(inputs, before)
        return outputs, (h[0],)

    def step(self, inputs: Tensor, carried: CellState) -> CellState:
        """Read one input a row, [B, I]."""
        compute = torch.rnn_tanh_cell if self.with_tanh else torch.rnn_relu_cell
        return (compute(inputs, carried[0], *self.weights()),)
