"""Long short-term memory (Hochreiter and Schmidhuber 1997; forget gates: Gers et al. 2000)."""

import torch
from torch import Tensor, nn

from models.neural.cells.cell import Carried, Cell
from models.neural.dropout import drop_weights


class LSTM(Cell):
    """i, f, o = σ(W x + U h + b), g = tanh(W x + U h + b); c ← f c + i g, h ← o tanh(c).

    Carries (h, c). Gates stand in the order i, f, g, o.

    Args:
        input_size: I.
        hidden_size: H.
        forget_bias: what the forget gates start with.
        weight_drop: share of U that is dropped in training.
    """

    parts = 2

    def __init__(self, input_size: int, hidden_size: int, *, forget_bias: float, weight_drop: float) -> None:
        super().__init__()
        self.kernel = nn.LSTM(input_size, hidden_size)
        self.weight_drop = weight_drop
        nn.init.zeros_(self.kernel.bias_ih_l0)
        nn.init.zeros_(self.kernel.bias_hh_l0)
        nn.init.constant_(self.kernel.bias_ih_l0[hidden_size : 2 * hidden_size], forget_bias)

    def forward(self, inputs: Tensor, carried: Carried) -> tuple[Tensor, Carried]:
        """Read T inputs a row: [T, B, I] to [T, B, H]."""
        before = [part[None] for part in carried]
        if self.training and self.weight_drop:
            of_inputs, of_hidden, *biases = self._weights()
            weights = [of_inputs, drop_weights(of_hidden, self.weight_drop), *biases]
            outputs, h, c = torch.lstm(inputs, before, weights, True, 1, 0.0, True, False, False)  # noqa: FBT003 - positional only
        else:
            outputs, (h, c) = self.kernel(inputs, (before[0], before[1]))
        return outputs, (h[0], c[0])

    def step(self, inputs: Tensor, carried: Carried) -> Carried:
        """Read one input a row, [B, I]."""
        h, c = torch.lstm_cell(inputs, list(carried), *self._weights())
        return h, c

    def _weights(self) -> list[Tensor]:
        """Of the inputs [4H, I], of the last outputs [4H, H], and two biases [4H]."""
        return list(self.kernel._flat_weights)  # noqa: SLF001 - torch names them one by one only
