"""Options of out-of-core estimation, its supported recipes and its memory limit."""

import re
import resource
import sys
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from models.errors import InputError, require_package
from training.ngram.estimate import WITH_DISCOUNTS
from training.recipe import Recipe

EngineName: TypeAlias = Literal["duckdb", "spark"]
ENGINES: tuple[str, ...] = ("memory", *get_args(EngineName))
"""Values of `--engine`; `memory` is the in-memory estimator, without engine."""

DEFAULT_LIMIT_BYTES = 2 * 1024**3
_MAX_BYTES = 1024**5
"""Maximum memory limit, beyond any machine's; engines cannot parse far larger ones."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_RESERVE_BYTES = 64 * 1024**2
"""Memory for an engine's unaccounted allocations and reading and writing tables."""

_ENGINE_SHARE = 0.8
"""Share of remaining memory given to DuckDB, which exceeds its limit by up to 15 %."""

_MIN_ENGINE_BYTES = 100 * 1024**2
"""Minimum memory for DuckDB to sort wide rows."""

_STATUS = Path("/proc/self/status")


class ScaleOptions(NamedTuple):
    """Options of out-of-core n-gram estimation.

    Attributes:
        engine: engine that runs the plan.
        memory_limit_bytes: limit of this process without mapped files; for Spark, of the driver's heap.
        work_dir: folder of the stages until publication; None for the registry's work folder.
    """

    engine: EngineName
    memory_limit_bytes: int
    work_dir: Path | None


def scale_options(engine: str, *, memory_limit: str | None, work_dir: Path | None) -> ScaleOptions | None:
    """Parse the three options; return None for the in-memory estimator.

    Raises:
        InputError: unknown engine, the limit is no size, or an option has no effect.
    """
    if engine == "memory":
        for name, value in {"memory-limit": memory_limit, "work-dir": work_dir}.items():
            if value is not None:
                problem = f"--{name} requires --engine duckdb or spark, given {value}"
                raise InputError(problem, param=name)
        return None
    limit = DEFAULT_LIMIT_BYTES if memory_limit is None else _bytes_of(memory_limit)
    for known in get_args(EngineName):
        if engine == known:
            return ScaleOptions(known, limit, work_dir)
    raise InputError(f"--engine is {engine!r}; use one of {', '.join(ENGINES)}", param="engine")


def require_engine(engine: EngineName) -> None:
    """Check that an engine's packages are installed.

    Raises:
        InputError: one is missing; the message gives the command that installs it.
    """
    for package in ("duckdb" if engine == "duckdb" else "pyspark", "pyarrow"):
        require_package(package, f"--engine {engine}", param="engine")


def check_relational(recipe: Recipe, engine: EngineName, *, name: str) -> None:
    """Check that the relational plan, run by an engine, supports a recipe.

    Raises:
        InputError: it does not; the message names the key, its possible values and its value.
    """
    ngram, slots = recipe.ngram, recipe.tokenizer.slots
    *some, last = WITH_DISCOUNTS
    smoothings = f"{', '.join(some)} or {last}"
    for key, value, possible, is_possible in (
        ("tokenizer.slots", slots, "without lists", not any(slots.values())),
        ("family", recipe.family, "ngram", recipe.family == "ngram"),
        ("train.from", recipe.train.base, "not set", not recipe.train.base),
        ("ngram.smoothing", ngram.smoothing, smoothings, ngram.smoothing in WITH_DISCOUNTS),
        ("ngram.discounts", ngram.discounts, "counts", ngram.discounts == "counts"),
        ("ngram.prune_entropy", ngram.prune_entropy, "0", ngram.prune_entropy == 0),
        ("ngram.quantize_bits", ngram.quantize_bits, "not set", ngram.quantize_bits is None),
    ):
        if not is_possible:
            raise InputError(
                f"recipe {name}: --engine {engine} estimates with {key} {possible} only, given {value}; "
                "use --engine memory",
                param=key,
            )


def _bytes_of(size: str) -> int:
    found = _SIZE.fullmatch(size.strip())
    count = 0.0
    if found is not None:
        number, prefix, binary = found.groups()
        count = float(number) * (1024 if binary else 1000) ** _POWERS[prefix.upper()]
    if not 1 <= count <= _MAX_BYTES:
        problem = f"--memory-limit is {size!r}; it must be a size such as 500MB or 1.5GiB, up to 1024TiB"
        raise InputError(problem, param="memory-limit")
    return int(count)


def own_memory_bytes() -> int:
    """Return this process's memory without file pages; if unknown, its peak."""
    if _STATUS.is_file() and (found := re.search(r"RssAnon:\s+(\d+) kB", _STATUS.read_text("ascii"))):
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def engine_memory_bytes(limit_bytes: int) -> int:
    """Compute an engine's memory budget to keep the process below a limit.

    Raises:
        InputError: the remaining memory is too small.
    """
    own = own_memory_bytes()
    share = int((limit_bytes - own - _RESERVE_BYTES) * _ENGINE_SHARE)
    if share < _MIN_ENGINE_BYTES:
        needed = own + _RESERVE_BYTES + int(_MIN_ENGINE_BYTES / _ENGINE_SHARE)
        raise InputError(
            f"--memory-limit is {megabytes(limit_bytes)}; text, vocabulary and program take {megabytes(own)}, "
            f"so at least {megabytes(needed)} are needed",
            param="memory-limit",
        )
    return share


def out_of_memory_error(limit_bytes: int, purpose: str, engine: str) -> InputError:
    """Build an engine's out-of-memory error; `purpose` describes the stage."""
    return InputError(
        f"--memory-limit {limit_bytes // 10**6} MB is too little for {purpose} with {engine}; "
        "raise it: the same command continues after the last finished stage",
        param="memory-limit",
    )


def megabytes(size: int) -> str:
    """Format a size in megabytes, rounded up."""
    return f"{-(-size // 10**6):,} MB"
