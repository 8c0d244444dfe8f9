"""What a recurrent model remembers of a text: the hidden vectors, as an immutable value."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.arrays import TokenIds
from models.neural.network import Hidden


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentState:
    """Hidden vectors of B texts.

    The top layer's last output, from which the next token is predicted, is `hidden[0][-1]`,
    so predicting needs nothing computed again.

    Attributes:
        hidden: each [layers, B, hidden]; (h, c) of an LSTM, (h,) of a GRU.
    """

    hidden: Hidden

    def __len__(self) -> int:
        return int(self.hidden[0].shape[1])

    @property
    def top(self) -> Tensor:
        """The top layer's last outputs [B, hidden]."""
        return self.hidden[0][-1]

    @torch.inference_mode()
    def select(self, rows: TokenIds) -> "RecurrentState":
        """Rows `rows[0], rows[1], …`, copied; rows may repeat."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.hidden[0].device)
        return RecurrentState(tuple(part.index_select(1, index) for part in self.hidden))

    @torch.inference_mode()
    def concatenate(self, others: Sequence["RecurrentState"]) -> "RecurrentState":
        """This state's rows, then those of each of `others`."""
        columns = zip(self.hidden, *(other.hidden for other in others), strict=True)
        return RecurrentState(tuple(torch.cat(parts, dim=1) for parts in columns))
