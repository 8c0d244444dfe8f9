"""DuckDB engine: runs the plan in this process, spilling to disk beyond the memory limit."""

import glob
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import duckdb

from models.errors import FormatError, RegistryError
from training.progress import Progress
from training.scale.options import engine_memory_bytes, out_of_memory_error
from training.scale.plan import Stage

_FILE = "part.parquet"
"""Name of a table's only file."""

_ROW_GROUP = 1 << 16
"""Rows buffered per thread while a table is written."""

_DISK_FULL = "No space left on device"
_POLL_INTERVAL_S = 0.25


class DuckDBEngine:
    """`QueryEngine` of DuckDB.

    Args:
        memory_limit_bytes: memory limit of the whole process.
        spill: folder for data beyond the limit.

    Raises:
        InputError: the memory limit is too small.
    """

    def __init__(self, memory_limit_bytes: int, spill: Path) -> None:
        self._limit_bytes = memory_limit_bytes
        self._spill = spill
        config: dict[str, Any] = {
            "memory_limit": f"{engine_memory_bytes(memory_limit_bytes) // 1024}KiB",
            "temp_directory": str(spill),
            "preserve_insertion_order": False,  # sorted tables stay sorted regardless
        }
        self._connection = duckdb.connect(config=config)

    def read(self, name: str, folder: Path) -> None:
        """Register the table in a folder under a name."""
        # unescaped, `data*/…` would also match the tables of `database/…`
        file = _quoted(glob.escape(str(folder / _FILE)))
        try:
            self._connection.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM read_parquet({file})")
        except duckdb.Error as error:
            raise FormatError(folder, _first_line(error), hint="remove it and try again") from None

    def write(self, stage: Stage, folder: Path, progress: Progress) -> None:
        """Write a stage's table into one file."""
        statement = (
            f"COPY ({stage.sql}) TO {_quoted(str(folder / _FILE))} "
            f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, ROW_GROUP_SIZE {_ROW_GROUP})"
        )
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._connection.execute, statement)
            reported = 0.0  # per cent
            try:
                while not wait([running], timeout=_POLL_INTERVAL_S).done:
                    done = self._connection.query_progress()
                    if done > reported:
                        progress.advance(done - reported)
                        reported = done
                running.result()
            except duckdb.OutOfMemoryException as error:
                if "max_temp_directory_size" in str(error):
                    problem = f"cannot write to {self._spill}: the disk is full ({stage.purpose})"
                    raise RegistryError(problem) from None
                raise out_of_memory_error(self._limit_bytes, stage.purpose, "DuckDB") from None
            except duckdb.IOException as error:
                # without the JSON around it
                reason = _DISK_FULL if _DISK_FULL in str(error) else _first_line(error)
                raise RegistryError(f"cannot write to {folder.parent}: {reason}") from None
            finally:
                if not running.done():  # Ctrl-C or SIGTERM
                    self._connection.interrupt()

    def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Return the rows of a small query."""
        return self._connection.execute(sql).fetchall()

    def close(self) -> None:
        """Close the connection, releasing memory."""
        self._connection.close()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].removeprefix("IO Error: ")
