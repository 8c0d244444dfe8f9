"""How much memory this process takes, and how much of a limit is left for an engine in it."""

import ctypes
import gc
import re
import resource
import sys
from pathlib import Path

from models.errors import InvalidInputError

_RESERVE_BYTES = 64 * 1024**2
"""What an engine takes beside what it counts, at least; and what reading and writing tables takes."""

_ENGINE_SHARE = 0.8
_MIN_ENGINE_BYTES = 100 * 1024**2
"""With less, DuckDB cannot sort wide rows."""

_STATUS = Path("/proc/self/status")


def own_memory_bytes() -> int:
    """Memory of this process that is not the pages of files; where that is not told, the most it ever took."""
    if _STATUS.is_file() and (found := re.search(r"RssAnon:\s+(\d+) kB", _STATUS.read_text("ascii"))):
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def release_memory() -> None:
    """Hand what was freed back to the system, where its allocator does not do so by itself."""
    gc.collect()
    if sys.platform.startswith("linux") and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def engine_memory_bytes(limit_bytes: int) -> int:
    """What an engine in this process may be told to take, so that all of it stays below a limit.

    Raises:
        InvalidInputError: too little is left.
    """
    own = own_memory_bytes()
    share = int((limit_bytes - own - _RESERVE_BYTES) * _ENGINE_SHARE)
    if share < _MIN_ENGINE_BYTES:
        needed = own + _RESERVE_BYTES + int(_MIN_ENGINE_BYTES / _ENGINE_SHARE)
        raise InvalidInputError(
            f"--memory-limit is {megabytes(limit_bytes)}; text, vocabulary and program take {megabytes(own)}, "
            f"so at least {megabytes(needed)} are needed",
            parameter="memory-limit",
        )
    return share


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{-(-size // 10**6):,} MB"
