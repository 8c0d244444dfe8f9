"""Interface of the engines that run the plan's stages; engines by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from models.errors import require_package
from training.progress import Progress
from training.scale.options import EngineName, ScaleOptions
from training.scale.plan import Stage


class QueryEngine(Protocol):
    """Runs SQL over folders of Parquet files."""

    def read(self, name: str, folder: Path) -> None:
        """Register the table in a folder under a name.

        Raises:
            FormatError: the table is missing or damaged.
        """

    def write(self, stage: Stage, folder: Path, progress: Progress) -> None:
        """Write a stage's table into an existing, empty folder; sorted tables in order of the file names.

        Raises:
            InvalidInputError: the memory limit is too small.
            RegistryError: a file operation failed, or the disk is full.
        """

    def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Return the rows of a query with a small result."""

    def close(self) -> None:
        """Release memory and processes."""


def require_engine(engine: EngineName) -> None:
    """Check that an engine's packages are installed.

    Raises:
        InvalidInputError: a package is missing; the message gives the command that installs it.
    """
    for package in ("duckdb" if engine == "duckdb" else "pyspark", "pyarrow"):
        require_package(package, f"--engine {engine}", parameter="engine")


def start_engine(options: ScaleOptions, spill: Path) -> QueryEngine:
    """Start the engine of the options.

    Args:
        options: engine and memory limit.
        spill: folder for data beyond the limit.

    Raises:
        InvalidInputError: its packages are not installed, or the memory limit is too small.
    """
    require_engine(options.engine)
    if options.engine == "duckdb":
        from training.scale.duckdb_engine import DuckDBEngine

        return DuckDBEngine(options.memory_limit_bytes, spill)
    from training.scale.spark_engine import SparkEngine

    return SparkEngine(options.memory_limit_bytes, spill)
