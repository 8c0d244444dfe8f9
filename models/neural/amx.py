"""Tiles of bytes, Intel's Advanced Matrix Extensions: whether they can be used, and their instructions.

A tile is a register of 16 lines of 64 bytes; one instruction multiplies 16 x 64 by 64 x 16 bytes and
adds to 16 x 16 sums. numba knows nothing of them, so kernels are written in LLVM's language.
"""

import ctypes
import platform
from typing import Any

import llvmlite.binding
from llvmlite import ir

from models.neural.llvm import codegen

_SYSTEM_CALL, _REQUEST, _TILE_DATA = 158, 0x1023, 18  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA


def _has_amx() -> bool:
    features = llvmlite.binding.get_host_cpu_features()
    return bool(features.get("amx-tile") and features.get("amx-int8"))


def _request_amx() -> bool:
    """Whether Linux lets this process use tiles; it wants to be asked before the first."""
    if not (HAS_AMX and platform.system() == "Linux"):
        return False
    refused: int = ctypes.CDLL(None).syscall(_SYSTEM_CALL, _REQUEST, _TILE_DATA)
    return refused == 0


HAS_AMX = _has_amx()
"""Whether the processor has them, so that kernels with them can be compiled."""

USE_AMX = _request_amx()
"""Whether this process may run such kernels."""


def emit_x86(builder: Any, instruction: str, *arguments: Any) -> None:
    """Generate an instruction; tiles are named by their numbers."""
    values = [ir.Constant(ir.IntType(8), one) if isinstance(one, int) else one for one in arguments]
    declared = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(codegen.get_or_insert_function(builder.module, declared, f"llvm.x86.{instruction}"), values)
