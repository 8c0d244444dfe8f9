"""What a neural model remembers of a text, as an immutable value."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.arrays import TokenIds
from models.neural.body import Hidden


@dataclass(frozen=True, slots=True, eq=False)
class NeuralState:
    """What is carried of B texts.

    Attributes:
        hidden: tensors whose dimension 1 is the batch; the first is the body's last output
            [1, B, W], so predicting needs nothing computed again.
    """

    hidden: Hidden

    def __len__(self) -> int:
        return int(self.hidden[0].shape[1])

    @property
    def top(self) -> Tensor:
        """The body's last outputs [B, W]."""
        return self.hidden[0][0]

    @torch.inference_mode()
    def select(self, rows: TokenIds) -> "NeuralState":
        """Rows `rows[0], rows[1], …`, copied; rows may repeat."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.hidden[0].device)
        return NeuralState(tuple(part.index_select(1, index) for part in self.hidden))

    @torch.inference_mode()
    def concatenate(self, others: Sequence["NeuralState"]) -> "NeuralState":
        """This state's rows, then those of each of `others`."""
        columns = zip(self.hidden, *(other.hidden for other in others), strict=True)
        return NeuralState(tuple(torch.cat(parts, dim=1) for parts in columns))
