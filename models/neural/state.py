"""States of neural models: immutable values with tensors (single precision) or arrays (int8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.arrays import TokenIds

HiddenArrays: TypeAlias = tuple[npt.NDArray[Any], ...]
"""Arrays whose dimension 1 is the batch; the first is the body's last output [1, B, W], float32."""


@dataclass(frozen=True, slots=True, eq=False)
class NeuralState:
    """State of B texts.

    Attributes:
        hidden: tensors, or arrays in an int8 network, whose dimension 1 is the batch; the first is the body's last
            output [1, B, W], stored to predict without repeating the step.
    """

    hidden: tuple[Any, ...]

    def __len__(self) -> int:
        return int(self.hidden[0].shape[1])

    @property
    def top(self) -> Any:
        """The body's last outputs [B, W]."""
        return self.hidden[0][0]

    def select(self, rows: TokenIds | slice) -> "NeuralState":
        """Copy rows `rows[0], rows[1], …`, which may repeat; a slice of array states is a view."""
        first = self.hidden[0]
        if not isinstance(first, Tensor):
            return NeuralState(tuple(part[:, rows] for part in self.hidden))
        with torch.inference_mode():
            index = torch.as_tensor(rows, dtype=torch.int64, device=first.device)
            return NeuralState(tuple(part.index_select(1, index) for part in self.hidden))

    def concatenate(self, states: Sequence["NeuralState"]) -> "NeuralState":
        """Return a state with the rows of this state, followed by the rows of each of `states`."""
        columns = zip(self.hidden, *(state.hidden for state in states), strict=True)
        if not isinstance(self.hidden[0], Tensor):
            return NeuralState(tuple(np.concatenate(parts, axis=1) for parts in columns))
        with torch.inference_mode():
            return NeuralState(tuple(torch.cat(parts, dim=1) for parts in columns))
