"""LLVM kernels of int8 inference: dot products of 64 rows of weights with 1, 4 or 16 vectors.

numba cannot emit byte-product instructions, so the loops are LLVM IR: with `vpdpbusd` if the
processor supports it (AVX-512 VNNI: 64 products and sums per instruction), with AMX tiles for
sixteen vectors, else with portable arithmetic. All are exact, so their results are equal.
`dequantise_sums` converts the integer sums to floats, sixteen at a time.
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from models.kernels.llvm import (
    BYTE,
    BYTE_POINTER,
    FLOAT_VECTOR,
    HAS_AMX,
    INT64,
    INT_VECTOR,
    VECTOR_WIDTH,
    broadcast,
    byte_pointer,
    call_llvm,
    codegen,
    emit_x86,
)
from models.kernels.log_sum_exp import ROW_LANES
from models.kernels.target import LEVEL

COLUMN_GROUP = 4
"""Number of neighbouring columns that one instruction multiplies and sums."""

COLUMN_MULTIPLE = 64
"""Vectors in memory are padded to a multiple of this width."""

ZERO_POINT = 128
"""Offset that makes weights unsigned, because the instruction requires one unsigned factor."""

_BYTE_VECTOR = ir.VectorType(ir.IntType(8), ROW_LANES)
_SUM_VECTORS = COLUMN_GROUP  # vectors of 16 sums for 64 rows


HAS_VNNI = LEVEL.has("avx512vnni")
"""True if kernels are compiled for AVX-512 VNNI."""


def _byte_products(builder: Any, sums: Any, weights: Any, activations: Any) -> Any:
    """Add weights · activations in groups of four to sums, with one instruction."""
    declared = ir.FunctionType(INT_VECTOR, [INT_VECTOR, INT_VECTOR, INT_VECTOR])
    instruction = codegen.get_or_insert_function(builder.module, declared, "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(
        instruction, [sums, builder.bitcast(weights, INT_VECTOR), builder.bitcast(activations, INT_VECTOR)]
    )


def _word_products(builder: Any, sums: Any, weights: Any, activations: Any) -> Any:
    """Compute `_byte_products` with 32-bit integers."""
    quads = []
    for offset in range(COLUMN_GROUP):
        lanes = ir.Constant(INT_VECTOR, list(range(offset, ROW_LANES, COLUMN_GROUP)))
        weight = builder.zext(builder.shuffle_vector(weights, weights, lanes), INT_VECTOR)
        activation = builder.sext(builder.shuffle_vector(activations, activations, lanes), INT_VECTOR)
        quads.append(builder.mul(weight, activation))
    first, second, third, fourth = quads
    return builder.add(sums, builder.add(builder.add(first, second), builder.add(third, fourth)))


def _dot_intrinsic(rows: int, multiply: Any) -> Any:
    """Return an intrinsic that writes the dot products [rows, 64] of 64 rows of weights and `rows` vectors."""

    @intrinsic
    def fill(
        _typing_context: Any, weights: Any, start: Any, activations: Any, row: Any, groups: Any, sums: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = partial(byte_pointer, context, builder, signature, arguments)
            index = arguments[4].type
            width = builder.mul(arguments[4], ir.Constant(index, COLUMN_GROUP))
            weight = builder.gep(data(0), [arguments[1]])
            first = builder.gep(data(2), [builder.mul(arguments[3], width)])
            # rows x 4 vectors of 16 sums, in registers; a column group's weights are read once for all rows
            totals = [
                [
                    codegen.alloca_once_value(builder, ir.Constant(INT_VECTOR, None))
                    for _ in range(_SUM_VECTORS)
                ]
                for _ in range(rows)
            ]
            with codegen.for_range(builder, arguments[4], intp=index) as loop:
                group_address = builder.gep(
                    weight, [builder.mul(loop.index, ir.Constant(index, ROW_LANES * COLUMN_GROUP))]
                )
                columns = []
                for number in range(_SUM_VECTORS):
                    address = builder.gep(group_address, [ir.Constant(INT64, number * ROW_LANES)])
                    columns.append(builder.load(builder.bitcast(address, _BYTE_VECTOR.as_pointer()), align=1))
                offset = builder.mul(loop.index, ir.Constant(index, COLUMN_GROUP))
                for number in range(rows):
                    skipped = builder.mul(width, ir.Constant(index, number))
                    address = builder.gep(first, [builder.add(skipped, offset)])
                    four = builder.load(builder.bitcast(address, ir.IntType(32).as_pointer()), align=1)
                    repeated = builder.bitcast(broadcast(builder, four, INT_VECTOR), _BYTE_VECTOR)
                    for total, column in zip(totals[number], columns, strict=True):
                        builder.store(multiply(builder, builder.load(total), column, repeated), total)
            target = data(5)
            for number in range(rows * _SUM_VECTORS):
                address = builder.gep(target, [ir.Constant(INT64, number * ROW_LANES)])
                value = builder.load(totals[number // _SUM_VECTORS][number % _SUM_VECTORS])
                builder.store(value, builder.bitcast(address, INT_VECTOR.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(weights, start, activations, row, groups, sums), generate

    return fill


_accumulate = _byte_products if HAS_VNNI else _word_products
dot_one_row: Any = _dot_intrinsic(1, _accumulate)
dot_four_rows: Any = _dot_intrinsic(4, _accumulate)


TILE_ROWS = 16
"""Number of vectors of one AMX product."""

_SUMS = (0, 1, 2, 3)
_ROWS_TILE = 4
_WEIGHTS = (5, 6, 7, 5)
_CONFIGURATION = bytearray(64)  # palette 1; eight tiles of 16 rows of 64 bytes
_CONFIGURATION[0] = 1
_CONFIGURATION[16:32] = COLUMN_MULTIPLE.to_bytes(2, "little") * 8
_CONFIGURATION[48:56] = bytes([TILE_ROWS] * 8)


@intrinsic
def _configure_tiles(_typing_context: Any) -> Any:
    """Configure the tiles; required before `dot_sixteen_rows`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if HAS_AMX:
            value = ir.Constant(ir.ArrayType(BYTE, len(_CONFIGURATION)), _CONFIGURATION)
            address = codegen.alloca_once_value(builder, value)
            emit_x86(builder, "ldtilecfg", builder.bitcast(address, BYTE_POINTER))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _release_tiles(_typing_context: Any) -> Any:
    """Release the tiles, so the operating system does not save them at context switches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if HAS_AMX:
            emit_x86(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _dot_sixteen_rows(  # same arguments as `dot_four_rows`
    _typing_context: Any,
    weights: Any,
    start: Any,
    activations: Any,
    row: Any,
    groups: Any,
    sums: Any,
) -> Any:
    """Write the dot products [16, 64] of 64 rows of weights and 16 vectors, in four AMX tiles of [16, 16]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not HAS_AMX:
            return context.get_dummy_value()

        data = partial(byte_pointer, context, builder, signature, arguments)

        def number(value: int) -> Any:
            return ir.Constant(INT64, value)

        width = builder.mul(arguments[4], number(COLUMN_GROUP))
        weight = builder.gep(data(0), [arguments[1]])
        first = builder.gep(data(2), [builder.mul(arguments[3], width)])
        for tile in _SUMS:
            emit_x86(builder, "tilezero", tile)
        # per 64 columns: one tile of activations [16, 64], then four of weights [16, 16 x 4] in memory order
        steps = builder.udiv(width, number(COLUMN_MULTIPLE))
        with codegen.for_range(builder, steps, intp=INT64) as loop:
            column = builder.mul(loop.index, number(COLUMN_MULTIPLE))
            emit_x86(builder, "tileloadd64", _ROWS_TILE, builder.gep(first, [column]), width)
            group_address = builder.gep(weight, [builder.mul(column, number(ROW_LANES))])
            for tile, source in zip(_SUMS, _WEIGHTS, strict=True):
                address = builder.gep(group_address, [number(tile * COLUMN_MULTIPLE)])
                emit_x86(builder, "tileloadd64", source, address, number(ROW_LANES * COLUMN_GROUP))
                emit_x86(builder, "tdpbsud", tile, _ROWS_TILE, source)
        target = data(5)
        for tile in _SUMS:
            address = builder.gep(target, [number(tile * COLUMN_MULTIPLE)])
            emit_x86(builder, "tilestored64", tile, address, number(ROW_LANES * COLUMN_GROUP))
        return context.get_dummy_value()

    return types.void(weights, start, activations, row, groups, sums), generate


configure_tiles: Any = _configure_tiles  # called without the typing context
release_tiles: Any = _release_tiles
dot_sixteen_rows: Any = _dot_sixteen_rows


_FLOAT_BYTES = 4
_VECTOR_RANGE = range(ROW_LANES // VECTOR_WIDTH)


@intrinsic
def _dequantise_sums(
    _typing_context: Any,
    sums: Any,
    rows: Any,
    totals: Any,
    scales: Any,
    factors: Any,
    bias: Any,
    products: Any,
    stride: Any,
) -> Any:
    """Convert the dot products of 64 rows of weights and N vectors to floats, and add the bias.

    Args:
        sums: dot products [N, 64], int32; the weights include the offset `ZERO_POINT`.
        rows: N.
        totals: sum of each vector's integers [N], int32.
        scales: scales of the vectors [N], float32.
        factors: scales of the rows of weights [64], float32.
        bias: [64], float32.
        products: pointer to the products of the first vector, float32; written.
        stride: number of floats between the products of two vectors.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = partial(byte_pointer, context, builder, signature, arguments)

        def scaled(index: Any, factor: int) -> Any:
            return builder.mul(index, ir.Constant(INT64, factor))

        def vectors(address: Any, vector_type: Any) -> list[Any]:
            addresses = (
                builder.gep(address, [ir.Constant(INT64, n * VECTOR_WIDTH * _FLOAT_BYTES)])
                for n in _VECTOR_RANGE
            )
            return [
                builder.load(builder.bitcast(source, vector_type.as_pointer()), align=4)
                for source in addresses
            ]

        def number(address: Any, index: Any, vector_type: Any) -> Any:
            source = builder.gep(address, [scaled(index, _FLOAT_BYTES)])
            return builder.load(builder.bitcast(source, vector_type.as_pointer()), align=4)

        summed, totalled, of_vectors, of_weights, added, target = (start(n) for n in (0, 2, 3, 4, 5, 6))
        columns, biases = vectors(of_weights, FLOAT_VECTOR), vectors(added, FLOAT_VECTOR)
        with codegen.for_range(builder, arguments[1], intp=arguments[1].type) as loop:
            total = number(totalled, loop.index, ir.IntType(32))
            offset = broadcast(
                builder, builder.mul(total, ir.Constant(ir.IntType(32), ZERO_POINT)), INT_VECTOR
            )
            scale = broadcast(builder, number(of_vectors, loop.index, ir.FloatType()), FLOAT_VECTOR)
            row = vectors(builder.gep(summed, [scaled(loop.index, ROW_LANES * _FLOAT_BYTES)]), INT_VECTOR)
            written = builder.gep(target, [scaled(builder.mul(loop.index, arguments[7]), _FLOAT_BYTES)])
            for n in _VECTOR_RANGE:
                integers = builder.sitofp(builder.sub(row[n], offset), FLOAT_VECTOR)
                product = call_llvm(builder, "fma", integers, builder.fmul(scale, columns[n]), biases[n])
                source = builder.gep(written, [ir.Constant(INT64, n * VECTOR_WIDTH * _FLOAT_BYTES)])
                builder.store(product, builder.bitcast(source, FLOAT_VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(sums, rows, totals, scales, factors, bias, products, stride), generate


dequantise_sums: Any = _dequantise_sums  # called without the typing context
