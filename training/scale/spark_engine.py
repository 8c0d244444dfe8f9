"""Spark engine: runs the plan on a cluster, or on the cores of one machine.

`spark-submit` or Spark's configuration define the session, such as a cluster and executor
memory; by default it is local. The work folder must have the same path on all nodes.
"""

import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from models.errors import FormatError, InputError, RegistryError
from training.progress import Progress
from training.scale.options import out_of_memory_error
from training.scale.plan import Stage

_MIN_BYTES = 500 * 1024**2
"""Minimum driver memory; Spark rejects less than 450 MB."""

_SPECIAL = re.compile(r"[\\*?{}\[\]]")
"""Pattern characters in a path, which a backslash escapes."""


class SparkEngine:
    """`QueryEngine` of Spark.

    Args:
        memory_limit_bytes: heap of the driver, the only process without a cluster.
        spill: folder for data beyond the limit.

    Raises:
        InputError: the memory limit is too small, or Spark does not start.
    """

    def __init__(self, memory_limit_bytes: int, spill: Path) -> None:
        self._limit_bytes = memory_limit_bytes
        if memory_limit_bytes < _MIN_BYTES:
            given, needed = memory_limit_bytes // 10**6, _MIN_BYTES // 10**6
            problem = f"--memory-limit is {given} MB; Spark needs at least {needed} MB"
            raise InputError(problem, param="memory-limit")
        logging.getLogger("py4j").setLevel(logging.ERROR)
        try:
            self._session = (
                SparkSession.builder.appName("gramophone")
                .config("spark.driver.memory", f"{memory_limit_bytes // 1024**2}m")
                .config("spark.local.dir", str(spill))
                .config("spark.sql.warehouse.dir", str(spill / "warehouse"))
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.log.level", "OFF")  # errors with a one-line message
                .getOrCreate()
            )
        except (PySparkException, RuntimeError) as error:
            problem = f"Spark does not start: {_first_line(error)}"
            raise InputError(problem, param="engine") from None

    def read(self, name: str, folder: Path) -> None:
        """Register the table in a folder under a name."""
        files = self._session.read.option("pathGlobFilter", "*.parquet")
        try:
            files.parquet(_SPECIAL.sub(r"\\\g<0>", _hadoop_path(folder))).createOrReplaceTempView(name)
        except PySparkException as error:
            raise FormatError(folder, _first_line(error), hint="remove it and try again") from None

    def write(self, stage: Stage, folder: Path, progress: Progress) -> None:  # noqa: ARG002 - Spark has its own progress page
        """Write a stage's table, one file per partition, numbered in order."""
        target = folder / "table"
        try:
            table = self._session.sql(stage.sql)
            table.write.option("compression", "zstd").parquet(_hadoop_path(target))
        except Exception as error:  # noqa: BLE001 - py4j has own types of Java exceptions
            message = str(error)
            if "OutOfMemoryError" in message:
                raise out_of_memory_error(self._limit_bytes, stage.purpose, "Spark") from None
            if "No space left on device" in message:
                raise RegistryError(f"cannot write to {folder.parent}: No space left on device") from None
            raise RegistryError(f"Spark failed {stage.purpose}: {_root_cause(message)}") from None
        for file in sorted(target.glob("*.parquet")):
            file.rename(folder / file.name)
        shutil.rmtree(target)

    def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Return the rows of a small query."""
        return [tuple(row) for row in self._session.sql(sql).collect()]

    def close(self) -> None:
        """Stop the Spark session."""
        self._session.stop()


def _hadoop_path(folder: Path) -> str:
    """Return a folder's Hadoop path: a URI without percent-encoding."""
    return f"file://{folder.absolute()}"


def _root_cause(message: str) -> str:
    """Return a Java trace's root cause, the last listed."""
    lines = [line for line in message.splitlines() if line.startswith((": ", "Caused by: "))]
    return (lines[-1] if lines else message.partition("\n")[0]).removeprefix("Caused by").removeprefix(": ")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
