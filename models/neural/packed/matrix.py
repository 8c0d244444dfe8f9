"""Matrices of weights packed in either way, and their products with vectors, whichever it is."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
from numba import types
from numba.extending import overload

from models.arrays import FloatArray
from models.neural.amx import TILES
from models.neural.packed import digit_matrix, digits, float_matrix
from models.neural.packed.digit_matrix import DigitMatrix
from models.neural.packed.float_matrix import FloatMatrix
from models.neural.packed.float_products import WIDE
from models.neural.packed.tiles import DEPTH
from models.shelf import Shelf
from models.tensor_file import Arrays

PackedMatrix: TypeAlias = DigitMatrix | FloatMatrix


class Packing(NamedTuple):
    """A way to pack.

    Attributes:
        layout: names what is made.
        pack: makes a matrix of weights [O, W] and a bias [O]; what is added to O has no weights and a given bias.
        arrays_of: a matrix's arrays, by name.
        of_arrays: the matrix that these are of.
    """

    layout: str
    pack: Callable[[FloatArray, FloatArray, float], PackedMatrix]
    arrays_of: Callable[[Any], Arrays]
    of_arrays: Callable[[Arrays], PackedMatrix]


DIGITS = Packing(digit_matrix.LAYOUT, digit_matrix.pack, digit_matrix.arrays_of, digit_matrix.of_arrays)
"""Three bytes a weight, for processors that multiply tiles of bytes."""

FLOATS = Packing(float_matrix.LAYOUT, float_matrix.pack, float_matrix.arrays_of, float_matrix.of_arrays)
"""Numbers as they are, for those that have wide registers."""

BEST = DIGITS if TILES else FLOATS if WIDE else None
"""How this processor multiplies fastest; None where plain matrices are as good."""


def packed_once(
    shelf: Shelf,
    name: str,
    packing: Packing,
    weights: Callable[[], FloatArray],
    bias: Callable[[], FloatArray],
    *,
    fill: float = 0.0,
) -> PackedMatrix:
    """A packed matrix, from the shelf if it lies there; then weights [O, W] and bias [O] are not asked for."""
    arrays = shelf.take(name, lambda: packing.arrays_of(packing.pack(weights(), bias(), fill)))
    return packing.of_arrays(arrays)


def room_for(matrix: PackedMatrix, count: int) -> Any:
    """Room for vectors that a matrix is to be multiplied with, to be filled by `write`."""
    if isinstance(matrix, FloatMatrix):
        return np.empty((count, matrix.width), np.float32)
    return digits.room_for(count, matrix.depths * DEPTH)


@numba.njit(nogil=True, cache=True)
def write(vectors: Any, room: Any, first: Any) -> None:
    """Write vectors [N, W] into a room, from a row on."""
    _write(vectors, room, first)


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, room: Any, count: Any, products: Any) -> None:
    """The products of a matrix with vectors, and its bias.

    Args:
        matrix: a `PackedMatrix` of O rows.
        room: `room_for` vectors of the matrix's width.
        count: of the vectors, the first ones.
        products: written, [N, O rounded up], float32.
    """
    _multiply(matrix, room, count, products)


@numba.njit(nogil=True, cache=True)
def multiply_some(matrix: Any, room: Any, row: Any, begin: Any, end: Any, products: Any, column: Any) -> None:
    """The products of some rows of a matrix with a few vectors, and their bias.

    Args:
        matrix: a `PackedMatrix`.
        room: `room_for` vectors of the matrix's width.
        row: the first vector, a multiple of the matrix's `apart`.
        begin: of the matrix's rows, a multiple of 64.
        end: of them, and one; likewise.
        products: written, float32, a row for each vector, of which there may be as many as the matrix's `piece` has.
        column: of the products, where the first row's stand.
    """
    _multiply_some(matrix, room, row, begin, end, products, column)


def _write(vectors: Any, room: Any, first: Any) -> None:
    """What each kind of room does."""


def _multiply(matrix: Any, room: Any, count: Any, products: Any) -> None:
    """What each kind of matrix does."""


def _multiply_some(
    matrix: Any, room: Any, row: Any, begin: Any, end: Any, products: Any, column: Any
) -> None:
    """What each kind of matrix does."""


# numba wants functions that are not compiled yet


@overload(_write, strict=False)
def _write_into(vectors: Any, room: Any, first: Any) -> Any:  # noqa: ARG001 - the room decides
    if isinstance(room, types.Array):
        return lambda vectors, room, first: float_matrix.write(vectors, room, first)  # noqa: PLW0108
    return lambda vectors, room, first: digits.split(vectors, room, first)  # noqa: PLW0108


@overload(_multiply, strict=False)
def _multiply_with(matrix: Any, room: Any, count: Any, products: Any) -> Any:  # noqa: ARG001
    if matrix.instance_class is FloatMatrix:
        return lambda matrix, room, count, products: float_matrix.multiply(matrix, room, count, products)  # noqa: PLW0108
    return lambda matrix, room, count, products: digit_matrix.multiply(matrix, room, count, products)  # noqa: PLW0108


@overload(_multiply_some, strict=False)
def _multiply_some_with(
    matrix: Any,
    room: Any,  # noqa: ARG001
    row: Any,  # noqa: ARG001
    begin: Any,  # noqa: ARG001
    end: Any,  # noqa: ARG001
    products: Any,  # noqa: ARG001
    column: Any,  # noqa: ARG001
) -> Any:
    if matrix.instance_class is FloatMatrix:
        return lambda matrix, room, row, begin, end, products, column: float_matrix.multiply_some(  # noqa: PLW0108
            matrix, room, row, begin, end, products, column
        )
    return lambda matrix, room, row, begin, end, products, column: digit_matrix.multiply_some(  # noqa: PLW0108
        matrix, room, row, begin, end, products, column
    )
