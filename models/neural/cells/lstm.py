"""Long short-term memory (Hochreiter and Schmidhuber 1997; forget gates: Gers et al. 2000)."""

import torch
from torch import Tensor, nn

from models.neural.cells.cell import CellState
from models.neural.cells.kernel import SINGLE_LAYER_ARGS, TorchCell


class LSTM(TorchCell):
    """i, f, o = σ(W x + U h + b), g = tanh(W x + U h + b); c ← f c + i g, h ← o tanh(c).

    Carries (h, c). Gates stand in the order i, f, g, o.

    Args:
        input_size: I.
        hidden_size: H.
        forget_bias: what the forget gates start with.
        weight_drop: share of U that is dropped in training.
        orthogonal: whether each gate's part of U starts orthogonal.
    """

    parts = 2

    def __init__(
        self, input_size: int, hidden_size: int, *, forget_bias: float, weight_drop: float, orthogonal: bool
    ) -> None:
        kernel = nn.LSTM(input_size, hidden_size)
        super().__init__(kernel, weight_drop=weight_drop, orthogonal=orthogonal)
        for bias in self.weights()[2:]:
            nn.init.zeros_(bias)
        nn.init.constant_(self.weights()[2][hidden_size : 2 * hidden_size], forget_bias)

    def forward(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        """Read T inputs a row: [T, B, I] to [T, B, H]."""
        before = [part[None] for part in carried]
        if self.drops:
            outputs, h, c = torch.lstm(inputs, before, self.dropped_weights(), *SINGLE_LAYER_ARGS)
        else:
            outputs, (h, c) = self.kernel(inputs, (before[0], before[1]))
        return outputs, (h[0], c[0])

    def step(self, inputs: Tensor, carried: CellState) -> CellState:
        """Read one input a row, [B, I]."""
        h, c = torch.lstm_cell(inputs, list(carried), *self.weights())
        return h, c
