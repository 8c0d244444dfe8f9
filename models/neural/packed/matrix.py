"""Packed weight matrices of either packing, and linear layers of them."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numba
import numpy as np
import torch
from numba.extending import overload
from torch import Tensor, nn

from models.arrays import FloatArray
from models.kernels.llvm import USE_AMX
from models.neural.packed import float_products, split_products
from models.neural.packed.float_products import HAS_AVX512, FloatMatrix
from models.neural.packed.split_products import SplitFloatMatrix
from models.neural.threads import run_row_slices
from models.tensor_files import Arrays, PackedWeightCache

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
    split_products.LAYOUT, split_products.pack, split_products.arrays_of, split_products.of_arrays
)
"""Three bytes a weight, for processors that multiply tiles of bytes."""

FLOAT_PACKING = Packing(
    float_products.LAYOUT, float_products.pack, float_products.arrays_of, float_products.of_arrays
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
        module = float_products if arguments[0].instance_class is FloatMatrix else split_products
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


class PackedLinear(nn.Module):
    """W x + b, without a gradient.

    Args:
        layer: in single precision on a CPU; it is not changed.
        packing: how.
        shelf: where packed weights lie.
    """

    def __init__(self, layer: nn.Linear, packing: Packing, shelf: PackedWeightCache) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        weight = layer.weight.detach().numpy()
        bias = np.zeros(len(weight), np.float32) if layer.bias is None else layer.bias.detach().numpy()
        self.size = len(weight)
        self.matrix = load_or_pack(shelf, "weight", packing, lambda: weight, lambda: bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Products [..., O] of inputs [..., I]."""
        vectors = inputs.detach().reshape(-1, inputs.shape[-1]).contiguous().numpy()
        products = multiply_vectors(self.matrix, vectors)[:, : self.size]
        return torch.from_numpy(products).view(*inputs.shape[:-1], self.size)


def multiply_vectors(matrix: PackedMatrix, vectors: FloatArray) -> FloatArray:
    """The products [N, O rounded up] of a matrix with vectors [N, W], and its bias."""
    products = np.empty((len(vectors), matrix.size), np.float32)

    def work(rows: slice) -> None:
        some = vectors[rows]
        room = matrix.buffer_for(len(some))
        write(matrix, some, room, 0)
        multiply(matrix, room, len(some), products[rows])

    run_row_slices(work, len(vectors))
    return products
