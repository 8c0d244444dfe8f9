"""Spark engine: the plan on a cluster, or on the cores of one machine.

The session is what `spark-submit` or Spark's own configuration define (a cluster, executors' memory),
else this machine's. All nodes must see the work folder under the same path.
"""

import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from models.errors import FormatError, InvalidInputError, RegistryError
from training.progress import Progress
from training.scale.plan import Stage

_MIN_BYTES = 500 * 1024**2
"""Spark refuses a driver of less than 450 MB."""

_SPECIAL = re.compile(r"[\\*?{}\[\]]")
"""In an address that is read, these are a pattern unless a backslash stands before them."""


class SparkEngine:
    """See `engines.Engine`.

    Args:
        memory_limit_bytes: the heap of the driver, which is all there is without a cluster.
        spill: a folder for what does not fit into memory.

    Raises:
        InvalidInputError: the memory limit is too small, or Spark does not start.
    """

    def __init__(self, memory_limit_bytes: int, spill: Path) -> None:
        self._limit_bytes = memory_limit_bytes
        if memory_limit_bytes < _MIN_BYTES:
            raise InvalidInputError(
                f"--memory-limit is {memory_limit_bytes // 10**6} MB; Spark needs at least "
                f"{_MIN_BYTES // 10**6} MB",
                parameter="memory-limit",
            )
        logging.getLogger("py4j").setLevel(logging.ERROR)
        try:
            self._session = (
                SparkSession.builder.appName("gramophone")
                .config("spark.driver.memory", f"{memory_limit_bytes // 1024**2}m")
                .config("spark.local.dir", str(spill))
                .config("spark.sql.warehouse.dir", str(spill / "warehouse"))
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.log.level", "OFF")  # what fails is raised, and told in one line
                .getOrCreate()
            )
        except (PySparkException, RuntimeError) as error:
            raise InvalidInputError(
                f"Spark does not start: {_first_line(error)}", parameter="engine"
            ) from None

    def read(self, name: str, folder: Path) -> None:
        """Call the table in a folder by a name from now on.

        Raises:
            FormatError: it is not there any more, or damaged.
        """
        files = self._session.read.option("pathGlobFilter", "*.parquet")
        try:
            files.parquet(_SPECIAL.sub(r"\\\g<0>", _hadoop_path(folder))).createOrReplaceTempView(name)
        except PySparkException as error:
            raise FormatError(folder, _first_line(error), hint="remove it and start again") from None

    def write(self, stage: Stage, folder: Path, progress: Progress) -> None:  # noqa: ARG002 - Spark tells on its own page
        """Write a stage's table, a file for each part; a sorted one from the first file to the last.

        Raises:
            InvalidInputError: the memory limit is too small.
            RegistryError: the file system refused, or the disk is full.
        """
        target = folder / "table"
        try:
            table = self._session.sql(stage.sql)
            table.write.option("compression", "zstd").parquet(_hadoop_path(target))
        except Exception as error:  # noqa: BLE001 - py4j has errors of its own for whatever Java throws
            self._explain(stage, folder, error)
        for file in sorted(target.glob("*.parquet")):
            file.rename(folder / file.name)
        shutil.rmtree(target)

    def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """The few rows of a query."""
        return [tuple(row) for row in self._session.sql(sql).collect()]

    def close(self) -> None:
        """Stop it."""
        self._session.stop()

    def _explain(self, stage: Stage, folder: Path, error: Exception) -> NoReturn:
        said = str(error)
        if "OutOfMemoryError" in said:
            raise InvalidInputError(
                f"--memory-limit {self._limit_bytes // 10**6} MB is too little for {stage.purpose} with Spark; "
                "give more: what is done already is kept",
                parameter="memory-limit",
            ) from None
        if "No space left on device" in said:
            raise RegistryError(f"cannot write to {folder.parent}: No space left on device") from None
        raise RegistryError(f"Spark failed {stage.purpose}: {_root_cause(said)}") from None


def _hadoop_path(folder: Path) -> str:
    """Where a folder is, as Hadoop writes it: a URI, but with every character as it is."""
    return f"file://{folder.absolute()}"


def _root_cause(said: str) -> str:
    """What Java says was the first cause: the last that its trace names."""
    lines = [line for line in said.splitlines() if line.startswith((": ", "Caused by: "))]
    return (lines[-1] if lines else said.partition("\n")[0]).removeprefix("Caused by").removeprefix(": ")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
