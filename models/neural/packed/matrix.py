"""Matrices of weights packed in either way, and their products with vectors, whichever it is."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numba
from numba.extending import overload

from models.arrays import FloatArray
from models.neural.amx import USE_AMX
from models.neural.packed import digit_matrix, float_matrix
from models.neural.packed.digit_matrix import SplitFloatMatrix
from models.neural.packed.float_matrix import FloatMatrix
from models.neural.packed.float_products import HAS_AVX512
from models.shelf import PackedWeightCache
from models.tensor_file import Arrays

PackedMatrix: TypeAlias = SplitFloatMatrix | FloatMatrix


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


SPLIT_FLOAT_PACKING = Packing(
    digit_matrix.LAYOUT, digit_matrix.pack, digit_matrix.arrays_of, digit_matrix.of_arrays
)
"""Three bytes a weight, for processors that multiply tiles of bytes."""

FLOAT_PACKING = Packing(
    float_matrix.LAYOUT, float_matrix.pack, float_matrix.arrays_of, float_matrix.of_arrays
)
"""Numbers as they are, for those that have wide registers."""

BEST_PACKING = SPLIT_FLOAT_PACKING if USE_AMX else FLOAT_PACKING if HAS_AVX512 else None
"""How this processor multiplies fastest; None where plain matrices are as good."""


def load_or_pack(
    shelf: PackedWeightCache,
    name: str,
    packing: Packing,
    weights: Callable[[], FloatArray],
    bias: Callable[[], FloatArray],
    *,
    fill: float = 0.0,
) -> PackedMatrix:
    """A packed matrix, from the shelf if it lies there; then weights [O, W] and bias [O] are not asked for."""
    arrays = shelf.get_or_make(name, lambda: packing.arrays_of(packing.pack(weights(), bias(), fill)))
    return packing.of_arrays(arrays)


def _by_matrix(name: str) -> Any:
    """For kernels: what the module of a matrix, the first argument, does by that name."""

    def stand_in(*arguments: Any) -> None:
        """Never runs: numba puts what `choose` returns in its place."""

    @overload(stand_in)
    def choose(*arguments: Any) -> Any:
        module = float_matrix if arguments[0].instance_class is FloatMatrix else digit_matrix
        chosen = getattr(module, name)

        def call(*arguments: Any) -> Any:
            return chosen(*arguments)

        return call

    return stand_in


_write, _multiply, _multiply_some = (_by_matrix(name) for name in ("write", "multiply", "multiply_some"))


@numba.njit(nogil=True, cache=True)
def write(matrix: Any, vectors: Any, room: Any, first: Any) -> None:
    """Write vectors [N, W] into a matrix's room for such, from a row on."""
    _write(matrix, vectors, room, first)


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, room: Any, count: Any, products: Any) -> None:
    """The products of a matrix with vectors, and its bias.

    Args:
        matrix: a `PackedMatrix` of O rows.
        room: the matrix's, for vectors.
        count: of the vectors, the first ones.
        products: written, [N, O rounded up], float32.
    """
    _multiply(matrix, room, count, products)


@numba.njit(nogil=True, cache=True)
def multiply_some(matrix: Any, room: Any, row: Any, begin: Any, end: Any, products: Any, column: Any) -> None:
    """The products of some rows of a matrix with a few vectors, and their bias.

    Args:
        matrix: a `PackedMatrix`.
        room: the matrix's, for vectors.
        row: the first vector, a multiple of the matrix's `apart`.
        begin: of the matrix's rows, a multiple of 64.
        end: of them, and one; likewise.
        products: written, float32, a row for each vector, of which there may be as many as the matrix's `piece` has.
        column: of the products, where the first row's stand.
    """
    _multiply_some(matrix, room, row, begin, end, products, column)
