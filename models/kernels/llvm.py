"""Helpers for numba intrinsics in LLVM IR: pointers, vectors of 16 numbers.

numba passes the context, the builder, the signature and the arguments to the `generate` function of
an intrinsic.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic as _intrinsic

VECTOR_WIDTH = 16
"""Number of 32-bit lanes in the widest vectors."""

FLOAT_VECTOR = ir.VectorType(ir.FloatType(), VECTOR_WIDTH)
INT_VECTOR = ir.VectorType(ir.IntType(32), VECTOR_WIDTH)
BYTE, INT64 = ir.IntType(8), ir.IntType(64)
BYTE_POINTER = BYTE.as_pointer()

intrinsic: Callable[[Callable[..., Any]], Any] = _intrinsic
"""Make a function for kernels from one that generates its code."""

codegen: Any = _cgutils
_Pointer: Any = types.CPointer


def procedure(generate: Callable[..., None]) -> Any:
    """Make a function without a result for kernels from one that generates its code.

    That one takes the builder and the arguments, with pointers to first elements for arrays.
    """

    def declare(_typing_context: Any, *kinds: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            generate(builder, *map(partial(first_element, context, builder), signature.args, arguments))
            return context.get_dummy_value()

        return types.void(*kinds), build

    return intrinsic(wraps(generate)(declare))


def first_element(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Return a pointer to an array's first element; other values as they are."""
    return context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value


@intrinsic
def pointer_at(_typing_context: Any, array: Any, index: Any) -> Any:
    """Return a pointer to an array element, for intrinsics to read or write from there on.

    numba would count a slice's references, with two atomic operations. It does not count this
    pointer, so the array must be an argument of the function or its caller.

    Args:
        array: contiguous, of one dimension.
        index: index of the element.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(first_element(context, builder, signature.args[0], arguments[0]), [arguments[1]])

    return _Pointer(array.dtype)(array, index), generate


def broadcast(builder: Any, value: Any, vector_type: Any) -> Any:
    """Return a `FLOAT_VECTOR` or `INT_VECTOR` with one number in every lane."""
    empty = ir.Constant(vector_type, ir.Undefined)
    inserted = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(inserted, empty, ir.Constant(INT_VECTOR, None))


def call_llvm(builder: Any, function: str, *arguments: Any) -> Any:
    """Call an LLVM function, such as `fma`, on vectors of sixteen floats."""
    declared = ir.FunctionType(FLOAT_VECTOR, [FLOAT_VECTOR] * len(arguments))
    named = codegen.get_or_insert_function(builder.module, declared, f"llvm.{function}.v{VECTOR_WIDTH}f32")
    return builder.call(named, arguments)
