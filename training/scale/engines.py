"""Interface of the engines that run the plan's stages, and the engines by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from models.errors import InvalidInputError
from training.progress import Progress
from training.scale.options import EngineName, ScaleOptions
from training.scale.plan import Stage

_EXTRAS: dict[EngineName, str] = {"duckdb": "scale", "spark": "spark"}
"""The extra of the distribution that brings each engine."""


class QueryEngine(Protocol):
    """Runs SQL over folders of Parquet files."""

    def read(self, name: str, folder: Path) -> None:
        """Call the table in a folder by a name from now on.

        Raises:
            FormatError: it is not there any more, or damaged.
        """
        ...

    def write(self, stage: Stage, folder: Path, progress: Progress) -> None:
        """Write a stage's table into a folder that is there and empty; in order of the files' names, if in order.

        Raises:
            InvalidInputError: the memory limit is too small.
            RegistryError: the file system refused, or the disk is full.
        """
        ...

    def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """The few rows of a query."""
        ...

    def close(self) -> None:
        """Give memory and processes back."""
        ...


def require_engine(engine: EngineName) -> None:
    """Make sure that an engine's packages are installed.

    Raises:
        InvalidInputError: they are not; the message has the command that installs them.
    """
    try:
        import pyarrow.parquet  # noqa: F401 - all engines' tables are read and written with it

        if engine == "duckdb":
            import duckdb  # noqa: F401 - is it there?
        else:
            import pyspark  # noqa: F401 - likewise
    except ImportError as error:
        _raise_missing(engine, error)


def start_engine(options: ScaleOptions, spill: Path) -> QueryEngine:
    """Start the engine that the options name.

    Args:
        options: which, and how much memory it may take.
        spill: a folder for what does not fit into memory.

    Raises:
        InvalidInputError: its packages are not installed, or the memory limit is too small.
    """
    require_engine(options.engine)
    if options.engine == "duckdb":
        from training.scale.duckdb_engine import DuckDBEngine

        return DuckDBEngine(options.memory_limit_bytes, spill)
    from training.scale.spark_engine import SparkEngine

    return SparkEngine(options.memory_limit_bytes, spill)


def _raise_missing(engine: EngineName, error: ImportError) -> NoReturn:
    raise InvalidInputError(
        f"--engine {engine} needs the package {error.name}: pip install 'gramophone-lm[{_EXTRAS[engine]}]'",
        parameter="engine",
    ) from None
