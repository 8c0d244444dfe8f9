"""LLVM kernels of int8 inference: dot products of 64 rows of weights with 1 or 4 vectors.

numba cannot emit instructions for byte products, so loops are LLVM IR: with `vpdpbusd` (VNNI: 64 products
and sums per instruction with AVX-512, 32 without), or else with sums of two 16-bit products, for which LLVM
selects `vpmaddwd` on AVX2. All are exact, so results are equal.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir

from models.kernels.log_sum_exp import ROW_LANES
from models.kernels.math import (
    BYTE,
    BYTE_POINTER,
    FLOAT_VECTOR,
    INT64,
    INT_VECTOR,
    VECTOR_WIDTH,
    broadcast,
    call_llvm,
    codegen,
    procedure,
)
from models.kernels.target import LEVEL

COLUMN_GROUP = 4
"""Number of adjacent columns that one instruction multiplies and sums."""

COLUMN_MULTIPLE = 64
"""Vectors in memory are padded to a multiple of this width."""

ZERO_POINT = 128
"""Offset that makes weights unsigned, as the instruction requires of one factor."""

_VECTOR_BYTES = 64
_BYTES = ir.VectorType(BYTE, _VECTOR_BYTES)
_WORDS = ir.VectorType(ir.IntType(16), _VECTOR_BYTES // 2)
_PRODUCTS = ir.VectorType(ir.IntType(32), _VECTOR_BYTES // 2)

# of 64 rows of weights
_GROUP_BYTES = ROW_LANES * COLUMN_GROUP
_SUM_VECTORS = ROW_LANES // VECTOR_WIDTH  # vectors of 16 sums for 64 rows

_HAS_AVX512_VNNI = "avx512vnni" in LEVEL.features
HAS_VNNI = _HAS_AVX512_VNNI or "avxvnni" in LEVEL.features
"""True if kernels are compiled for VNNI instructions."""

_FLOAT_BYTES = 4


def _at(builder: Any, address: Any, index: Any, size: int) -> Any:
    """Return the address of an array's element, from its index and the elements' size in bytes."""
    if isinstance(index, int):
        index = ir.Constant(INT64, index)
    return builder.gep(address, [builder.mul(index, ir.Constant(index.type, size))])


def _load(builder: Any, address: Any, value_type: Any) -> Any:
    return builder.load(builder.bitcast(address, value_type.as_pointer()), align=1)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.bitcast(address, value.type.as_pointer()), align=1)


class _Arithmetic(NamedTuple):
    """Arithmetic of dot products.

    Attributes:
        prepare: function from the address of a vector's bytes to those of its factors, 4 bytes per group.
        multiply: function of sums [16], weights [16, 4] and a group's factors, each 16 times; returns the
            sums with the products added.
        groups: number of groups of columns prepared at once.
        sums: number of vectors of 16 sums that fit in registers.
    """

    prepare: Callable[[Any, Any], list[Any]]
    multiply: Callable[[Any, Any, Any, list[Any]], Any]
    groups: int
    sums: int


def _multiply_bytes(builder: Any, sums: Any, weights: Any, factors: list[Any]) -> Any:
    """Add products in groups of four to sums, with one instruction of 512 bits or two of 256."""
    lanes = VECTOR_WIDTH if _HAS_AVX512_VNNI else VECTOR_WIDTH // 2
    part = ir.VectorType(ir.IntType(32), lanes)
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    instruction = codegen.get_or_insert_function(builder.module, ir.FunctionType(part, [part] * 3), name)
    operands = [sums, builder.bitcast(weights, INT_VECTOR), *factors]

    def multiply(first: int) -> Any:
        chosen = ir.Constant(part, list(range(first, first + lanes)))
        return builder.call(instruction, [builder.shuffle_vector(value, value, chosen) for value in operands])

    joined = ir.Constant(INT_VECTOR, list(range(VECTOR_WIDTH)))
    return builder.shuffle_vector(multiply(0), multiply(VECTOR_WIDTH - lanes), joined)


def _split_bytes(builder: Any, values: Any, shift: Any) -> list[Any]:
    """Return even and odd ones of 64 bytes as 16-bit integers; the shift sets the sign."""
    words, byte = builder.bitcast(values, _WORDS), ir.Constant(_WORDS, [8] * _WORDS.count)
    return [shift(builder.shl(words, byte), byte), shift(words, byte)]


def _split_activations(builder: Any, address: Any) -> list[Any]:
    """Store the halves of 64 activations on the stack and return their addresses."""
    halves = _split_bytes(builder, _load(builder, address, _BYTES), builder.ashr)
    return [builder.bitcast(codegen.alloca_once_value(builder, half), BYTE_POINTER) for half in halves]


def _multiply_words(builder: Any, sums: Any, weights: Any, factors: list[Any]) -> Any:
    """Compute `_multiply_bytes` from 16-bit factors: an instruction per two products."""
    neighbours = [ir.Constant(INT_VECTOR, list(range(first, _PRODUCTS.count, 2))) for first in range(2)]
    for half, factor in zip(_split_bytes(builder, weights, builder.lshr), factors, strict=True):
        words = builder.sext(builder.bitcast(factor, _WORDS), _PRODUCTS)
        product = builder.mul(builder.sext(half, _PRODUCTS), words)
        pair = (builder.shuffle_vector(product, product, lanes) for lanes in neighbours)
        sums = builder.add(sums, builder.add(*pair))
    return sums


_BYTE_ARITHMETIC = _Arithmetic(
    lambda _, address: [address], _multiply_bytes, groups=1, sums=16 if _HAS_AVX512_VNNI else 4
)
_WORD_ARITHMETIC = _Arithmetic(_split_activations, _multiply_words, _VECTOR_BYTES // COLUMN_GROUP, sums=4)


def _dot_intrinsic(rows: int, arithmetic: _Arithmetic) -> Any:
    """Return an intrinsic to write dot products [rows, 64] of 64 rows of weights and `rows` vectors."""
    per_row = min(_SUM_VECTORS, arithmetic.sums // rows)

    @procedure
    def fill(
        builder: Any, weights: Any, start: Any, activations: Any, row: Any, groups: Any, sums: Any
    ) -> None:
        at = partial(_at, builder)

        def loop(count: int) -> Any:
            return codegen.for_range(builder, ir.Constant(INT64, count))

        weight, first, target = (builder.bitcast(a, BYTE_POINTER) for a in (weights, activations, sums))
        weight = builder.gep(weight, [start])
        width = builder.mul(groups, ir.Constant(INT64, COLUMN_GROUP))
        numbers = (builder.add(row, ir.Constant(INT64, n)) for n in range(rows))
        starts = [builder.gep(first, [builder.mul(number, width)]) for number in numbers]
        steps = builder.udiv(groups, ir.Constant(INT64, arithmetic.groups))
        # all groups of columns, for as many of 64 weight rows as have sums in registers
        with loop(_SUM_VECTORS // per_row) as part:
            totals = [
                [codegen.alloca_once(builder, INT_VECTOR, zfill=True) for _ in range(per_row)]
                for _ in range(rows)
            ]
            part_weight = at(weight, part.index, per_row * _VECTOR_BYTES)
            with codegen.for_range(builder, steps) as step:
                step_weight = at(part_weight, step.index, arithmetic.groups * _GROUP_BYTES)
                places = [at(address, step.index, arithmetic.groups * COLUMN_GROUP) for address in starts]
                prepared = [arithmetic.prepare(builder, place) for place in places]
                with loop(arithmetic.groups) as group:
                    # [R, 16, 4] weights of four columns, read once for all vectors
                    column = at(step_weight, group.index, _GROUP_BYTES)
                    fours = [_load(builder, at(column, n, _VECTOR_BYTES), _BYTES) for n in range(per_row)]
                    for addresses, row_totals in zip(prepared, totals, strict=True):
                        of_group = [at(address, group.index, COLUMN_GROUP) for address in addresses]
                        given = [_load(builder, address, ir.IntType(32)) for address in of_group]
                        factors = [broadcast(builder, four, INT_VECTOR) for four in given]
                        for total, four in zip(row_totals, fours, strict=True):
                            added = arithmetic.multiply(builder, builder.load(total), four, factors)
                            builder.store(added, total)
            part_target = at(target, part.index, per_row * _VECTOR_BYTES)
            for number, row_totals in enumerate(totals):
                for n, total in enumerate(row_totals):
                    address = at(part_target, number * _SUM_VECTORS + n, _VECTOR_BYTES)
                    _store(builder, builder.load(total), address)

    return fill


_arithmetic = _BYTE_ARITHMETIC if HAS_VNNI else _WORD_ARITHMETIC
dot_one_row: Any = _dot_intrinsic(1, _arithmetic)
dot_four_rows: Any = _dot_intrinsic(4, _arithmetic)


@procedure
def dequantise_sums(
    builder: Any,
    sums: Any,
    rows: Any,
    totals: Any,
    scales: Any,
    factors: Any,
    bias: Any,
    products: Any,
    stride: Any,
) -> None:
    """Convert dot products of 64 rows of weights and N vectors to floats; add the bias.

    Args:
        builder: builder of the caller's code.
        sums: dot products [N, 64], int32; the weights include the offset `ZERO_POINT`.
        rows: N.
        totals: sum of each vector's integers [N], int32.
        scales: scales of the vectors [N], float32.
        factors: scales of the rows of weights [64], float32.
        bias: [64], float32.
        products: pointer to the products of the first vector, float32; written.
        stride: number of floats between the products of two vectors.
    """
    at = partial(_at, builder)

    def number(array: Any, index: Any, number_type: Any) -> Any:
        return _load(builder, at(array, index, _FLOAT_BYTES), number_type)

    def vectors(address: Any, vector_type: Any) -> list[Any]:
        return [_load(builder, at(address, n, _VECTOR_BYTES), vector_type) for n in range(_SUM_VECTORS)]

    summed, totalled, of_vectors, of_weights, added, target = (
        builder.bitcast(array, BYTE_POINTER) for array in (sums, totals, scales, factors, bias, products)
    )
    columns, biases = vectors(of_weights, FLOAT_VECTOR), vectors(added, FLOAT_VECTOR)
    with codegen.for_range(builder, rows) as loop:
        total = number(totalled, loop.index, ir.IntType(32))
        offset = broadcast(builder, builder.mul(total, ir.Constant(ir.IntType(32), ZERO_POINT)), INT_VECTOR)
        scale = broadcast(builder, number(of_vectors, loop.index, ir.FloatType()), FLOAT_VECTOR)
        row = vectors(at(summed, loop.index, ROW_LANES * _FLOAT_BYTES), INT_VECTOR)
        written = at(target, builder.mul(loop.index, stride), _FLOAT_BYTES)
        for n in range(_SUM_VECTORS):
            integers = builder.sitofp(builder.sub(row[n], offset), FLOAT_VECTOR)
            product = call_llvm(builder, "fma", integers, builder.fmul(scale, columns[n]), biases[n])
            _store(builder, product, at(written, n, _VECTOR_BYTES))
