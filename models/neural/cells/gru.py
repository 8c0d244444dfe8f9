"""Gated recurrent unit (Cho et al. 2014), with the reset gate behind the product as in cuDNN."""

import torch
from torch import Tensor, nn

from models.neural.cells.cell import Carried, Cell
from models.neural.dropout import drop_weights


class GRU(Cell):
    """r, z = σ(W x + U h + b), n = tanh(W x + b + r (U h + b')); h ← (1 − z) n + z h.

    Carries (h,). Gates stand in the order r, z, n.

    Args:
        input_size: I.
        hidden_size: H.
        weight_drop: share of U that is dropped in training.
    """

    parts = 1

    def __init__(self, input_size: int, hidden_size: int, *, weight_drop: float) -> None:
        super().__init__()
        self.kernel = nn.GRU(input_size, hidden_size)
        self.weight_drop = weight_drop

    def forward(self, inputs: Tensor, carried: Carried) -> tuple[Tensor, Carried]:
        """Read T inputs a row: [T, B, I] to [T, B, H]."""
        before = carried[0][None]
        if self.training and self.weight_drop:
            of_inputs, of_hidden, *biases = self._weights()
            weights = [of_inputs, drop_weights(of_hidden, self.weight_drop), *biases]
            outputs, h = torch.gru(inputs, before, weights, True, 1, 0.0, True, False, False)  # noqa: FBT003 - positional only
        else:
            outputs, h = self.kernel(inputs, before)
        return outputs, (h[0],)

    def step(self, inputs: Tensor, carried: Carried) -> Carried:
        """Read one input a row, [B, I]."""
        return (torch.gru_cell(inputs, carried[0], *self._weights()),)

    def _weights(self) -> list[Tensor]:
        """Of the inputs [3H, I], of the last outputs [3H, H], and two biases [3H]."""
        return list(self.kernel._flat_weights)  # noqa: SLF001 - torch names them one by one only
