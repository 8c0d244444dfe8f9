"""Packed weight matrices of both packings, and linear layers with them."""

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
    """Functions of one packing.

    Attributes:
        layout: name of the layout in memory.
        pack: packs weights [O, W] and a bias [O]; padding of O has zero weights and the given bias.
        arrays_of: the arrays of a matrix, by name.
        of_arrays: the matrix of such arrays.
    """

    layout: str
    pack: Callable[[FloatArray, FloatArray, float], PackedMatrix]
    arrays_of: Callable[[Any], Arrays]
    of_arrays: Callable[[Arrays], PackedMatrix]


SPLIT_FLOAT_PACKING = Packing(
    split_products.LAYOUT, split_products.pack, split_products.arrays_of, split_products.of_arrays
)
"""Three bytes a weight, for processors with AMX."""

FLOAT_PACKING = Packing(
    float_products.LAYOUT, float_products.pack, float_products.arrays_of, float_products.of_arrays
)
"""Unchanged numbers, for processors with wide registers."""

BEST_PACKING = SPLIT_FLOAT_PACKING if USE_AMX else FLOAT_PACKING if HAS_AVX512 else None
"""The fastest packing on this processor; None where plain matrices are as fast."""


def load_or_pack(
    weight_cache: PackedWeightCache,
    name: str,
    packing: Packing,
    weights: Callable[[], FloatArray],
    bias: Callable[[], FloatArray],
    *,
    fill: float = 0.0,
) -> PackedMatrix:
    """A packed matrix, from the cache if it has one; else of weights [O, W] and bias [O], called only then."""
    arrays = weight_cache.get_or_make(name, lambda: packing.arrays_of(packing.pack(weights(), bias(), fill)))
    return packing.of_arrays(arrays)


def _dispatch_on_matrix(name: str) -> Any:
    """For kernels: dispatch a function by its name to the module of its first argument, a matrix."""

    def stand_in(*arguments: Any) -> None:
        """Stand-in, which numba replaces by the result of `choose`."""

    @overload(stand_in)
    def choose(*arguments: Any) -> Any:
        module = float_products if arguments[0].instance_class is FloatMatrix else split_products
        chosen = getattr(module, name)

        def call(*arguments: Any) -> Any:
            return chosen(*arguments)

        return call

    return stand_in


_write, _multiply, _multiply_some = (
    _dispatch_on_matrix(name) for name in ("write", "multiply", "multiply_some")
)


@numba.njit(nogil=True, cache=True)
def write(matrix: Any, vectors: Any, buffer: Any, first: Any) -> None:
    """Write vectors [N, W] into a matrix's buffer from row `first` on."""
    _write(matrix, vectors, buffer, first)


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, buffer: Any, count: Any, products: Any) -> None:
    """Write the products of a matrix with vectors, plus its bias.

    Args:
        matrix: a `PackedMatrix` of O rows.
        buffer: of vectors, made by the matrix.
        count: number of vectors, from the first on.
        products: written, [N, O rounded up], float32.
    """
    _multiply(matrix, buffer, count, products)


@numba.njit(nogil=True, cache=True)
def multiply_some(
    matrix: Any, buffer: Any, row: Any, begin: Any, end: Any, products: Any, column: Any
) -> None:
    """Write the products of a range of a matrix's rows with a few vectors, plus their bias.

    Args:
        matrix: a `PackedMatrix`.
        buffer: of vectors, made by the matrix.
        row: the first vector, a multiple of the matrix's `apart`.
        begin: of the matrix's rows, a multiple of 64.
        end: of them, exclusive; a multiple of 64.
        products: written, float32, a row for each vector, at most the number in the matrix's `piece`.
        column: of the products of row `begin`.
    """
    _multiply_some(matrix, buffer, row, begin, end, products, column)


class PackedLinear(nn.Module):
    """W x + b without gradients.

    Args:
        layer: in single precision on a CPU; it is not changed.
        packing: of the weights.
        weight_cache: cache of packed weights.
    """

    def __init__(self, layer: nn.Linear, packing: Packing, weight_cache: PackedWeightCache) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        weight = layer.weight.detach().numpy()
        bias = np.zeros(len(weight), np.float32) if layer.bias is None else layer.bias.detach().numpy()
        self.size = len(weight)
        self.matrix = load_or_pack(weight_cache, "weight", packing, lambda: weight, lambda: bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Products [..., O] of inputs [..., I]."""
        vectors = inputs.detach().reshape(-1, inputs.shape[-1]).contiguous().numpy()
        products = multiply_vectors(self.matrix, vectors)[:, : self.size]
        return torch.from_numpy(products).view(*inputs.shape[:-1], self.size)


def multiply_vectors(matrix: PackedMatrix, vectors: FloatArray) -> FloatArray:
    """The products [N, O rounded up] of a matrix with vectors [N, W], plus its bias."""
    products = np.empty((len(vectors), matrix.size), np.float32)

    def work(rows: slice) -> None:
        share = vectors[rows]
        buffer = matrix.buffer_for(len(share))
        write(matrix, share, buffer, 0)
        multiply(matrix, buffer, len(share), products[rows])

    run_row_slices(work, len(vectors))
    return products
