"""Where an estimation's stages are kept, so that one that was killed goes on where it was.

<folder>/estimation        the hash of text, recipe and program that the stages are of
<folder>/stage-<name>/     what a stage wrote; it appears by one rename, when it is whole
<folder>/stage-<name>/stage.json   the hash of everything that went in, and what was found
<folder>/.tmp-…            one that is being written
<folder>/spill/            what an engine could not keep in memory
"""

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.folders import TEMPORARY_PREFIX, fsync_tree, report_write_errors
from models.errors import InvalidInputError
from training.folder_locks import locked_folder

_MARKER_FILE = "estimation"
_FACTS_FILE = "stage.json"
_STAGE, _SPILL = "stage-", "spill"


def stage_key(*parts: object) -> str:
    """A hash of what goes into a stage."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class Workspace:
    """The stages of one estimation; made by `workspace`.

    Attributes:
        folder: where they lie.
        reused: how many were there already.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reused = 0
        self._removed = False

    @property
    def spill(self) -> Path:
        """A folder for what does not fit into memory."""
        return self.folder / _SPILL

    def path(self, name: str) -> Path:
        """Where a stage's files are."""
        return self.folder / f"{_STAGE}{name}"

    def claim(self, key: str) -> None:
        """Say what is estimated; the stages of something else are removed, as they lack tables that are no more.

        Args:
            key: a hash of text, recipe and program.

        Raises:
            RegistryError: the file system refused.
        """
        mark = self.folder / _MARKER_FILE
        with report_write_errors(self.folder):
            if mark.read_text(encoding="utf-8") == key:
                return
            mark.write_text(
                "", encoding="utf-8"
            )  # if this is the last that is done, the rest is no estimation's
            for path in list(self.folder.glob(f"{_STAGE}*")):
                self._removed = True
                _discard(path)
            mark.write_text(key, encoding="utf-8")

    def stage(self, name: str, key: str, write: Callable[[Path], Mapping[str, Any] | None]) -> dict[str, Any]:
        """What a stage found; it is run if it was not, from exactly the same.

        Args:
            name: of the stage.
            key: a hash of everything that goes in.
            write: fills an empty folder, and says what else it found, as JSON can carry it.

        Raises:
            RegistryError: the file system refused.
        """
        target = self.path(name)
        found = _read_facts(target)
        if found is not None and found["key"] == key:
            self.reused += 1
            return dict(found["facts"])
        temporary = self.folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        with report_write_errors(self.folder):
            if target.exists():
                _discard(target)
            temporary.mkdir()
            facts = dict(write(temporary) or {})
            (temporary / _FACTS_FILE).write_text(json.dumps({"key": key, "facts": facts}), encoding="utf-8")
            fsync_tree(temporary)
            temporary.rename(target)
        return facts

    def drop(self, name: str) -> None:
        """Remove a stage's table, which no other one reads any more; that it was there stays known."""
        with report_write_errors(self.folder):
            for path in self.path(name).glob("*.parquet"):
                path.unlink()

    def notes(self) -> list[str]:
        """What the user should know of stages that were there, in sentences."""
        notes = []
        if self._removed:
            notes.append(f"an unfinished estimation of another text or recipe in {self.folder} was removed")
        if self.reused:
            notes.append(f"{self.reused} stages of the estimation were done already")
        return notes

    def remove(self) -> None:
        """Remove all stages: the model is published."""
        for path in list(self.folder.glob(f"{_STAGE}*")):
            with contextlib.suppress(OSError):
                _discard(path)
        shutil.rmtree(self.spill, ignore_errors=True)
        (self.folder / _MARKER_FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def workspace(folder: Path) -> Iterator[Workspace]:
    """Open a folder of stages, or make one, and keep other processes from it for a while.

    Raises:
        InvalidInputError: another process is at work in it, or it holds something else.
        RegistryError: the file system refused.
    """
    busy = InvalidInputError(
        f"another process is estimating in {folder}; wait for it, or give another --work-dir",
        parameter="work-dir",
    )
    with locked_folder(folder, busy=busy):
        with report_write_errors(folder):
            _prepare_folder(folder)
        yield Workspace(folder)


def _prepare_folder(folder: Path) -> None:
    """Mark a folder as one of stages, and clear what a killed process left."""
    if not (folder / _MARKER_FILE).exists():
        if any(folder.iterdir()):
            raise InvalidInputError(
                f"{folder} is not empty and holds no stages of an estimation; give an empty folder",
                parameter="work-dir",
            )
        (folder / _MARKER_FILE).touch()
    for left in folder.glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(left)
    shutil.rmtree(folder / _SPILL, ignore_errors=True)
    (folder / _SPILL).mkdir()


def _discard(stage: Path) -> None:
    """Remove a stage by one rename: of one that is half there, the rest would be taken for all of its table."""
    gone = stage.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    stage.rename(gone)
    shutil.rmtree(gone)


def _read_facts(folder: Path) -> dict[str, Any] | None:
    """What a stage's file says; None if there is no whole one."""
    try:
        found = json.loads((folder / _FACTS_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and {"key", "facts"} <= found.keys() else None
