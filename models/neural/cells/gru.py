"""Gated recurrent unit (Cho et al. 2014), with the reset gate behind the product as in cuDNN."""

import torch
from torch import Tensor, nn

from models.neural.cells.cell import CellState
from models.neural.cells.kernel import SINGLE_LAYER_ARGS, TorchCell


class GRU(TorchCell):
    """r, z = σ(W x + U h + b), n = tanh(W x + b + r (U h + b')); h ← (1 − z) n + z h.

    Carries (h,). Gates stand in the order r, z, n.

    Args:
        input_size: I.
        hidden_size: H.
        weight_drop: share of U that is dropped in training.
        orthogonal: whether each gate's part of U starts orthogonal.
    """

    parts = 1

    def __init__(self, input_size: int, hidden_size: int, *, weight_drop: float, orthogonal: bool) -> None:
        super().__init__(nn.GRU(input_size, hidden_size), weight_drop=weight_drop, orthogonal=orthogonal)

    def forward(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        """Read T inputs a row: [T, B, I] to [T, B, H]."""
        before = carried[0][None]
        if self.drops:
            outputs, h = torch.gru(inputs, before, self.dropped_weights(), *SINGLE_LAYER_ARGS)
        else:
            outputs, h = self.kernel(inputs, before)
        return outputs, (h[0],)

    def step(self, inputs: Tensor, carried: CellState) -> CellState:
        """Read one input a row, [B, I]."""
        return (torch.gru_cell(inputs, carried[0], *self.weights()),)
