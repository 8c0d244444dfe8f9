"""Processor level of compiled kernels, chosen from this host before numba generates code.

Code for a level runs on all its processors, so kernels compiled on one host are valid on another.
Kernels select instructions by `LEVEL`, never by the host. NUMBA_CPU_NAME in the environment
overrides it.
"""

from typing import Any, NamedTuple

import llvmlite.binding
from numba.core import config as _config

config: Any = _config  # numba defines its settings at run time
_V3 = frozenset({"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

# LLVM would halve 512-bit vectors
_WIDE = "-prefer-256-bit,+avx512vnni"


class Level(NamedTuple):
    """Instructions that kernels may use.

    Attributes:
        name: name of the level, in NUMBA_CPU_NAME too.
        cpu: LLVM's name of the processor; None for this host's own.
        flags: LLVM's features beyond the processor's, such as `+avx512vnni`, separated by commas.
        features: features that a processor of the level has.
    """

    name: str
    cpu: str | None
    flags: str
    features: frozenset[str]


LEVELS = (
    Level("x86-64-v4-vnni", "x86-64-v4", _WIDE, _V4 | {"avx512vnni"}),
    Level("x86-64-v3-vnni", "x86-64-v3", "+avxvnni", _V3 | {"avxvnni"}),
    Level("x86-64-v3", "x86-64-v3", "", _V3),
)
"""Levels, the fastest first."""

HOST = Level("host", None, "", frozenset())
"""Level of other processors and architectures: numba's choice, no special instructions."""


def supported_levels() -> list[Level]:
    """Return the levels that this host's processor has, the fastest first."""
    present = {name for name, found in llvmlite.binding.get_host_cpu_features().items() if found}
    return [level for level in LEVELS if level.features <= present]


def _choose_level() -> Level:
    if config.CPU_NAME is None:
        return next(iter(supported_levels()), HOST)
    return next((level for level in LEVELS if level.name == config.CPU_NAME), HOST)


LEVEL = _choose_level()
"""Level of this process."""

if LEVEL is not HOST:
    config.CPU_NAME, config.CPU_FEATURES = LEVEL.cpu, LEVEL.flags
