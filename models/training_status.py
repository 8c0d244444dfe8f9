"""Status of running trainings, for services of their registry.

A training writes it into a file beside the saved runs.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from models.checkpoint.registry_interface import Registry
from models.files import replace_file

RUNS_FOLDER = ".runs"
"""Folder of unfinished trainings in a registry's work folder."""

_STATUS_FOLDER, _QUICKSTART = ".status", ".quickstart"
_STALE_S = 300.0
"""Age of a status whose training no longer runs."""


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """Running training of a model."""

    name: str
    """name of the model."""
    stage: str
    """the work in progress, in words."""
    done: float | None = None
    """completed share of the stage; null if unknown."""
    seconds_left: float | None = None
    """estimated remaining seconds of the stage; null if unknown."""


_FILE = TypeAdapter(tuple[float, TrainingStatus])
"""Content of a file: the time of the machine's monotonic clock in seconds, and the status."""


def write_status(folder: Path, status: TrainingStatus) -> None:
    """Write a training's status into a registry's work folder; a failure is ignored."""
    with contextlib.suppress(OSError):
        replace_file(_status_file(folder, status.name), _FILE.dump_json((time.monotonic(), status)))


def remove_status(folder: Path, name: str) -> None:
    """Remove the status of a training that has ended, and folders that are then empty."""
    path = _status_file(folder, name)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()
        path.parent.parent.rmdir()


def read_statuses(folder: Path) -> list[TrainingStatus]:
    """Return the running trainings of a registry by its work folder, by name.

    Damaged and old files are skipped, and those of other machines or an earlier start of
    this one, whose clocks began at another time.
    """
    return list(_read_statuses(folder / RUNS_FOLDER / _STATUS_FOLDER))


def quickstart_mark(registry: Registry) -> Path:
    """Return the file that exists from the beginning of the default models' training to its end.

    It has the address of the n-gram model, once this is published.
    """
    return registry.work_folder / RUNS_FOLDER / _QUICKSTART


def is_quickstart_due(registry: Registry) -> bool:
    """Return whether a registry has no model, or the default models were begun and one is missing."""
    return not registry.models() or quickstart_mark(registry).exists()


def _read_statuses(folder: Path) -> Iterator[TrainingStatus]:
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            written_s, status = _FILE.validate_json(path.read_bytes())
            if 0 <= time.monotonic() - written_s < _STALE_S:
                yield status


def _status_file(folder: Path, name: str) -> Path:
    return folder / RUNS_FOLDER / _STATUS_FOLDER / f"{name}.json"
