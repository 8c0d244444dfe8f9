"""Minimal gated recurrent unit (Feng et al. 2024, "Were RNNs all we needed?")."""

import torch
from torch import Tensor, nn

from models.neural.cells.cell import Cell, CellState
from models.neural.cells.scan import linear_recurrence


class MinGRU(Cell):
    """z = σ(W x + b), n = g(V x + c); h ← (1 − z) h + z n, with g(v) = v + ½ above 0 and σ(v) below.

    Gates look at the input alone and h enters linearly, so all steps are computed at once. Carries (h,).
    W stands above V.

    Args:
        input_size: I.
        hidden_size: H.
    """

    parts = 1

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.gates = nn.Linear(input_size, 2 * hidden_size)

    def forward(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        """Read T inputs a row: [T, B, I] to [T, B, H]."""
        decay, drive = self._terms(inputs)
        outputs = linear_recurrence(decay, drive, carried[0].to(decay.dtype))
        return outputs, (outputs[-1],)

    def step(self, inputs: Tensor, carried: CellState) -> CellState:
        """Read one input a row, [B, I]."""
        decay, drive = self._terms(inputs)
        return (torch.addcmul(drive, decay, carried[0]),)

    def _terms(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """What the last h is multiplied by and what is added to it, both [..., H] in the weights' precision."""
        z, n = self.gates(inputs).to(self.gates.weight.dtype).chunk(2, dim=-1)
        candidate = torch.where(n > 0, n + 0.5, torch.sigmoid(n))
        return torch.sigmoid(-z), torch.sigmoid(z) * candidate
