"""Float32 products with packed weights: a few vectors with 64 rows of weights, in AVX-512 registers.

Weights are stored in reading order, so each is loaded from the cache once for all vectors; the sums
stay in registers. A sum adds the columns in order, with one rounding each, so a vector's products do
not depend on the other vectors.
"""

from functools import partial
from typing import Any, NamedTuple

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.arrays import FloatArray
from models.kernels.llvm import (
    FLOAT_VECTOR,
    INT64,
    VECTOR_WIDTH,
    broadcast,
    byte_pointer,
    call_llvm,
    codegen,
    emit_prefetch,
    pointer_at,
)
from models.tensor_files import Arrays

COLUMNS = 64
"""Rows of weights of one product, columns of the result: four registers."""

HAS_AVX512 = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
"""Whether this processor has AVX-512: enough registers of sixteen numbers."""

_REGISTER = 4 * VECTOR_WIDTH  # bytes
_REGISTERS = COLUMNS // VECTOR_WIDTH
_LINE_BYTES = 64  # bytes of a cache line

PARTS_AHEAD = COLUMNS * 4 // _LINE_BYTES
"""Passes that prefetch the next 64 rows of weights, at one cache line a column and pass."""


def _products_of(count: int) -> Any:
    """An intrinsic that multiplies `count` vectors with 64 rows of weights."""

    @intrinsic
    def fill(
        _typing_context: Any,
        weights: Any,
        start: Any,
        bias: Any,
        vectors: Any,
        width: Any,
        products: Any,
        stride: Any,
        ahead: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = partial(byte_pointer, context, builder, signature, arguments)

            def floats(number: Any) -> Any:
                return builder.mul(number, ir.Constant(INT64, 4))

            def register_pointer(address: Any, number: int) -> Any:
                shifted = builder.gep(address, [ir.Constant(INT64, number * _REGISTER)])
                return builder.bitcast(shifted, FLOAT_VECTOR.as_pointer())

            def vector_address(address: Any, length: Any, number: int) -> Any:
                return builder.gep(address, [builder.mul(floats(length), ir.Constant(INT64, number))])

            first, added = builder.gep(data(0), [floats(arguments[1])]), data(2)
            later = builder.gep(data(0), [floats(arguments[7])])
            inputs = [vector_address(data(3), arguments[4], number) for number in range(count)]
            biases = [builder.load(register_pointer(added, part), align=4) for part in range(_REGISTERS)]
            # [count, 64] sums in 4 registers a vector; a column of 64 weights is loaded once for all vectors
            sums = [[codegen.alloca_once_value(builder, bias) for bias in biases] for _ in range(count)]
            with codegen.for_range(builder, arguments[4], intp=arguments[4].type) as loop:
                here = builder.gep(first, [floats(builder.mul(loop.index, ir.Constant(INT64, COLUMNS)))])
                emit_prefetch(
                    builder, builder.gep(later, [builder.mul(loop.index, ir.Constant(INT64, _LINE_BYTES))])
                )
                columns = [builder.load(register_pointer(here, part), align=4) for part in range(_REGISTERS)]
                for number in range(count):
                    address = builder.gep(inputs[number], [floats(loop.index)])
                    value = builder.load(builder.bitcast(address, ir.FloatType().as_pointer()), align=4)
                    repeated = broadcast(builder, value, FLOAT_VECTOR)
                    for total, column in zip(sums[number], columns, strict=True):
                        builder.store(call_llvm(builder, "fma", column, repeated, builder.load(total)), total)
            for number in range(count):
                target = vector_address(data(5), arguments[6], number)
                for part in range(_REGISTERS):
                    builder.store(builder.load(sums[number][part]), register_pointer(target, part), align=4)
            return context.get_dummy_value()

        return types.void(weights, start, bias, vectors, width, products, stride, ahead), generate

    return fill


one_vector: Any = _products_of(1)
two_vectors: Any = _products_of(2)
four_vectors: Any = _products_of(4)
six_vectors: Any = _products_of(6)
"""Write [6, 64] products of 64 rows of weights [width, 64] with 6 vectors, and a bias.

Args:
    weights: float32.
    start: of the rows in them.
    bias: of the rows, float32.
    vectors: the first number of the first; each next one begins `width` numbers further.
    width: of the vectors.
    products: pointer to the first vector's; written.
    stride: numbers from one vector's to the next one's.
    ahead: position of the weights that are read next; a cache line a column is prefetched.
"""


LAYOUT = "floats-1"
"""Version of the layout of `pack`; to be increased when it changes."""

_LINE_FLOATS = 16  # numbers of a cache line


class FloatMatrix(NamedTuple):
    """O rows of W weights as the products read them, four bytes a weight.

    Attributes:
        values: float32, [O / 64, W, 64] flattened, O rounded up.
        bias: [O rounded up], float32.
        width: W.
    """

    values: FloatArray
    bias: FloatArray
    width: int

    @property
    def size(self) -> int:
        """O rounded up to a multiple of 64."""
        return len(self.bias)

    @property
    def fewest(self) -> int:
        """Vectors at least for which a product pays."""
        return 1

    @property
    def apart(self) -> int:
        """Unit of the first vector of a product: a multiple of it."""
        return 1

    @property
    def piece(self) -> tuple[int, int]:
        """Vectors and columns of a tile of products, which stays in the nearest cache."""
        return 48, 512

    def buffer_for(self, count: int) -> FloatArray:
        """A buffer for vectors [N, W], to be filled by `write`."""
        return np.empty((count, self.width), np.float32)


def pack(matrix: FloatArray, bias: FloatArray, fill: float) -> FloatMatrix:
    """Pack weights [O, W] and a bias [O], padded with `fill`."""
    size, width = matrix.shape
    blocks = -(-size // COLUMNS)
    memory = np.zeros(blocks * COLUMNS * width + _LINE_FLOATS, np.float32)
    start = -memory.ctypes.data // 4 % _LINE_FLOATS
    values = memory[start : start + blocks * COLUMNS * width]
    padded = np.full(blocks * COLUMNS, fill, np.float32)
    padded[:size] = bias
    for block, columns in enumerate(values.reshape(blocks, width, COLUMNS)):
        rows = matrix[block * COLUMNS : (block + 1) * COLUMNS]
        columns[:, : len(rows)] = rows.T
    return FloatMatrix(values, padded, width)


def of_arrays(arrays: Arrays) -> FloatMatrix:
    """The matrix of arrays from `arrays_of`."""
    values, bias = arrays["values"], arrays["bias"]
    return FloatMatrix(values, bias, len(values) // len(bias))


def arrays_of(matrix: FloatMatrix) -> Arrays:
    """The arrays of a matrix, by name."""
    return {"values": matrix.values, "bias": matrix.bias}


@numba.njit(nogil=True, cache=True)
def write(_matrix: Any, vectors: Any, buffer: Any, first: Any) -> None:
    """Write vectors [N, W] into a buffer [M, W] from row `first` on."""
    buffer[first : first + len(vectors)] = vectors


@numba.njit(nogil=True, cache=True)
def multiply(matrix: Any, vectors: Any, count: Any, products: Any) -> None:
    """Write the products of a matrix with vectors, plus its bias.

    Args:
        matrix: a `FloatMatrix` of O rows.
        vectors: [N, W], float32.
        count: number of vectors, from the first on.
        products: written, [N, O rounded up], float32.
    """
    multiply_some(matrix, vectors, 0, 0, len(matrix.bias), products[:count], 0)


@numba.njit(nogil=True, cache=True)
def multiply_some(
    matrix: Any, vectors: Any, row: Any, begin: Any, end: Any, products: Any, column: Any
) -> None:
    """Write the products of a range of a matrix's rows with vectors, plus their bias.

    Args:
        matrix: a `FloatMatrix`.
        vectors: [N, W], float32.
        row: the first vector.
        begin: of the matrix's rows, a multiple of 64.
        end: of them, exclusive; a multiple of 64.
        products: written, float32, a row for each vector.
        column: of the products of row `begin`.
    """
    count, width, stride = len(products), matrix.width, products.shape[1]
    inputs, target = vectors.reshape(-1), products.reshape(-1)
    weights, biases = matrix.values, matrix.bias
    part = COLUMNS // PARTS_AHEAD * width
    # 64 rows of weights [W, 64] outside: read from memory once, then from the cache for all vectors
    for first in range(begin, end, COLUMNS):
        start, target_column = first * width, column + first - begin
        done = passes = 0
        while done < count:
            bias, destination = pointer_at(biases, first), pointer_at(target, done * stride + target_column)
            source = pointer_at(inputs, (row + done) * width)
            left, ahead = count - done, start + COLUMNS * width + passes % PARTS_AHEAD * part
            if left >= 6:
                six_vectors(weights, start, bias, source, width, destination, stride, ahead)
                done += 6
            elif left >= 4:
                four_vectors(weights, start, bias, source, width, destination, stride, ahead)
                done += 4
            elif left >= 2:
                two_vectors(weights, start, bias, source, width, destination, stride, ahead)
                done += 2
            else:
                one_vector(weights, start, bias, source, width, destination, stride, ahead)
                done += 1
            passes += 1
