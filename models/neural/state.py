"""States of neural models: immutable values, of tensors in single precision or arrays for int8."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.arrays import FloatArray, TokenIds
from models.neural.cells import Hidden


@dataclass(frozen=True, slots=True, eq=False)
class NeuralState:
    """State of B texts.

    Attributes:
        hidden: tensors whose dimension 1 is the batch; the first is the body's last output
            [1, B, W], so predicting repeats no computation.
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
    def concatenate(self, states: Sequence["NeuralState"]) -> "NeuralState":
        """This state's rows, then those of each of `states`."""
        columns = zip(self.hidden, *(state.hidden for state in states), strict=True)
        return NeuralState(tuple(torch.cat(parts, dim=1) for parts in columns))


HiddenArrays: TypeAlias = tuple[npt.NDArray[Any], ...]
"""Arrays whose dimension 1 is the batch; the first is the body's last output [1, B, W], float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Int8State:
    """State of B texts in an int8 network.

    Attributes:
        hidden: in single precision, as `NeuralState` carries it.
    """

    hidden: HiddenArrays

    def __len__(self) -> int:
        return int(self.hidden[0].shape[1])

    @property
    def top(self) -> FloatArray:
        """The body's last outputs [B, W]."""
        top: FloatArray = self.hidden[0][0]
        return top

    def select(self, rows: TokenIds | slice) -> "Int8State":
        """Rows `rows[0], rows[1], …`, copied, which may repeat; or a slice of them, as a view."""
        return Int8State(tuple(part[:, rows] for part in self.hidden))

    def concatenate(self, states: Sequence["Int8State"]) -> "Int8State":
        """This state's rows, then those of each of `states`."""
        columns = zip(self.hidden, *(state.hidden for state in states), strict=True)
        return Int8State(tuple(np.concatenate(parts, axis=1) for parts in columns))
