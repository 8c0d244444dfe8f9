"""What stands between the embedding and the output layer, in integers."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.neural.quantized.norm import LayerNormWeights, normalise_rows
from models.neural.quantized.rows import Int8Rows, dequantise_rows, quantise_rows, zero_int8_rows
from models.neural.quantized.state import HiddenArrays


class BodyOutputs(NamedTuple):
    """What reading T tokens a row gives.

    Attributes:
        outputs: after each token [T, B, W].
        rows: `Rows` [(T + 1) * B]: the outputs of each step after B that mean nothing.
        carried: what the body carries on.
    """

    outputs: FloatArray
    rows: Int8Rows
    carried: HiddenArrays


class Int8Body(ABC):
    """Vectors of tokens to vectors from which the next token is predicted."""

    @abstractmethod
    def read(self, vectors: Int8Rows, alive: TokenIds, carried: HiddenArrays) -> BodyOutputs:
        """Read up to T vectors a row.

        Args:
            vectors: `Rows` [(T + 1) * B], those of a step side by side, after B that mean nothing.
            alive: how many rows, the first ones, read the vector of each step [T], descending.
            carried: what the body carries; it is not changed.
        """


class Activations:
    """Vectors on their way through layers, [T, B, W]: as integers, and as floats where a layer wants such.

    Args:
        rows: `Rows` [(T + 1) * B], after B that mean nothing; None if they are to be rounded from the floats.
        floats: [T, B, W]; None if they are to be what the integers stand for.
        shape: (T, B, W).
    """

    def __init__(self, rows: Int8Rows | None, floats: FloatArray | None, shape: tuple[int, int, int]) -> None:
        self._rows, self._floats = rows, floats
        self._shape = shape

    @property
    def rows(self) -> Int8Rows:
        """As integers."""
        if self._rows is None:
            steps, batch, width = self._shape
            self._rows = zero_int8_rows((steps + 1) * batch, width)
            quantise_rows(self.floats.reshape(-1, width), self._rows, batch)
        return self._rows

    @property
    def floats(self) -> FloatArray:
        """In single precision."""
        if self._floats is None:
            _, batch, width = self._shape
            self._floats = np.empty(self._shape, np.float32)
            dequantise_rows(self.rows, batch, self._floats.reshape(-1, width))
        return self._floats

    def normalised(self, norm: LayerNormWeights | None) -> "Activations":
        """Each vector normalised; as it is for None."""
        if norm is None:
            return self
        floats = np.empty(self._shape, np.float32)
        width = self._shape[2]
        normalise_rows(norm, self.floats.reshape(-1, width), floats.reshape(-1, width))
        return Activations(None, floats, self._shape)

    def plus(self, other: "Activations") -> "Activations":
        """The sums with other vectors of the same width."""
        return Activations(None, self.floats + other.floats, self._shape)


def row_lengths(alive: TokenIds, batch: int) -> TokenIds:
    """How many steps each row takes part in [B], from how many rows take part in each step."""
    lengths: Any = np.count_nonzero(alive[:, None] > np.arange(batch), axis=0)
    return np.asarray(lengths, dtype=np.int64)
