"""Columns of numbers that grow at their end."""

from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", bound=np.generic)


class GrowableArray(Generic[T]):
    """Rows of numbers, to which others are added.

    Args:
        dtype: of the numbers.
        width: numbers in a row; None for a single one.
    """

    def __init__(self, dtype: type[T], width: int | None = None) -> None:
        self._rows: npt.NDArray[T] = np.empty((1024,) if width is None else (1024, width), dtype=dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, rows: Any) -> npt.NDArray[T]:
        answer: npt.NDArray[T] = self._rows[: self._size][rows]
        return answer

    def __setitem__(self, rows: Any, values: npt.NDArray[T]) -> None:
        self._rows[: self._size][rows] = values

    def append(self, rows: npt.NDArray[T]) -> None:
        """Add rows."""
        size = self._size + len(rows)
        if size > len(self._rows):
            grown = np.empty((2 * size, *self._rows.shape[1:]), dtype=self._rows.dtype)
            grown[: self._size] = self._rows[: self._size]
            self._rows = grown
        self._rows[self._size : size] = rows
        self._size = size
