"""Logits as kernels read and write them: float32, or bfloat16 that NumPy sees as 16 bits."""

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_BITS, _HALF = ir.IntType(32), ir.IntType(16)


@intrinsic
def _as_float32(typing_context: Any, logit: Any) -> Any:  # noqa: ARG001
    """A logit as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if logit == types.float32:
            return arguments[0]
        high = builder.shl(builder.zext(arguments[0], _BITS), _BITS(16))
        return builder.bitcast(high, ir.FloatType())

    return _check_logit(logit, types.float32(logit)), generate


@intrinsic
def _as_type_of(typing_context: Any, value: Any, logit: Any) -> Any:  # noqa: ARG001
    """A float32 in a logit's type; of two nearest bfloat16 the even one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if logit == types.float32:
            return arguments[0]
        bits = builder.bitcast(arguments[0], _BITS)
        even = builder.and_(builder.lshr(bits, _BITS(16)), _BITS(1))
        rounded = builder.add(builder.add(bits, _BITS(0x7FFF)), even)
        return builder.trunc(builder.lshr(rounded, _BITS(16)), _HALF)

    return _check_logit(logit, logit(types.float32, logit)), generate


def _check_logit(logit: Any, signature: Any) -> Any:
    if logit not in {types.float32, types.uint16}:
        raise numba.TypingError(f"logits are float32, or bfloat16 as uint16, not {logit}")
    return signature


as_float32: Any = _as_float32  # called without the typing context
as_type_of: Any = _as_type_of
