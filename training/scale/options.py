"""Options of out-of-core estimation, the recipes that it supports, and its memory limit."""

import ctypes
import gc
import re
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from models.errors import InvalidInputError
from training.ngram.smoothing.choice import WITH_DISCOUNTS
from training.recipe import Recipe

EngineName: TypeAlias = Literal["duckdb", "spark"]
ENGINES: tuple[str, ...] = ("memory", *get_args(EngineName))
"""What `--engine` can be; `memory` is the estimator that needs no other."""

DEFAULT_LIMIT_BYTES = 2 * 1024**3
_MAX_BYTES = 1024**5
"""More memory than there is; of far more, engines cannot read the number."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class ScaleOptions(NamedTuple):
    """How n-grams are estimated past memory.

    Attributes:
        engine: who runs the plan.
        memory_limit_bytes: what this process may take in all, files that are mapped aside; of Spark, the driver's heap.
        work_dir: where stages are kept until the model is published; None: beside the registry's models.
    """

    engine: EngineName
    memory_limit_bytes: int
    work_dir: Path | None


def scale_options(engine: str, *, memory_limit: str | None, work_dir: Path | None) -> ScaleOptions | None:
    """What the three options say; None for the estimator in memory.

    Raises:
        InvalidInputError: there is no such engine, the limit is no size, or an option has nothing to act on.
    """
    if engine == "memory":
        for name, value in {"memory-limit": memory_limit, "work-dir": work_dir}.items():
            if value is not None:
                raise InvalidInputError(
                    f"--{name} acts with --engine duckdb or spark only, given {value}", parameter=name
                )
        return None
    limit = DEFAULT_LIMIT_BYTES if memory_limit is None else _bytes_of(memory_limit)
    for known in get_args(EngineName):
        if engine == known:
            return ScaleOptions(known, limit, work_dir)
    raise InvalidInputError(f"--engine is {engine!r}, it can be {', '.join(ENGINES)}", parameter="engine")


def check_relational(recipe: Recipe, engine: EngineName, *, name: str) -> None:
    """Check that a recipe asks for nothing but what the relational plan computes.

    Args:
        recipe: the recipe.
        engine: who is to run the plan.
        name: the recipe's.

    Raises:
        InvalidInputError: it does; the message names the key, what it can be and what it is.
    """

    def refuse(key: str, value: object, possible: str) -> None:
        raise InvalidInputError(
            f"recipe {name}: --engine {engine} estimates with {key} {possible} only, given {value}; "
            "use --engine memory",
            parameter=key,
        )

    settings = recipe.ngram
    if recipe.family != "ngram":
        refuse("family", recipe.family, "ngram")
    if settings.smoothing not in WITH_DISCOUNTS:
        refuse("ngram.smoothing", settings.smoothing, _alternatives(WITH_DISCOUNTS))
    if settings.discounts != "counts":
        refuse("ngram.discounts", settings.discounts, "counts")
    if settings.prune_entropy > 0:
        refuse("ngram.prune_entropy", settings.prune_entropy, "0")
    if settings.quantize_bits is not None:
        refuse("ngram.quantize_bits", settings.quantize_bits, "not set")


def _bytes_of(size: str) -> int:
    found = _SIZE.fullmatch(size.strip())
    count = 0.0
    if found is not None:
        number, prefix, binary = found.groups()
        count = float(number) * (1024 if binary else 1000) ** _POWERS[prefix.upper()]
    if not 1 <= count <= _MAX_BYTES:
        raise InvalidInputError(
            f"--memory-limit is {size!r}, it must be a size such as 500MB or 1.5GiB, 1024TiB at most",
            parameter="memory-limit",
        )
    return int(count)


def _alternatives(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"


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
