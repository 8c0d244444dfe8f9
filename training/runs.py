"""Where unfinished trainings wait to be resumed: `<folder>/.runs/<model>/<recipe>/`, the registry's work folder."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from models.errors import InvalidInputError
from training.folder_locks import locked_folder

_RUNS_FOLDER = ".runs"
_STATE_FILE = "state.pt"


class ResumableRuns:
    """The trainings of one model, a mixture's parts among them.

    Args:
        folder: the registry's work folder.
        name: of the model.
        resume: whether trainings go on from what is saved; otherwise that is removed, with a note.

    Attributes:
        notes: what the user should know of them.
        seconds_before: that trainings took before they were resumed.
    """

    def __init__(self, folder: Path, name: str, *, resume: bool) -> None:
        self.resume = resume
        self.notes: list[str] = []
        self.seconds_before = 0.0
        self._name = name
        self._folder = folder / _RUNS_FOLDER / name
        self._interrupted = False

    def state_file(self, title: str) -> Path:
        """Where the state of the run with this title is, or will be."""
        return self._folder / title / _STATE_FILE

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training a model of this name for a while.

        Raises:
            InvalidInputError: one is at it.
            RegistryError: the file system refused.
        """
        busy = InvalidInputError(
            f"another process is training {self._name!r} in {self._folder.parent.parent}; wait for it, or give "
            "another --name",
            parameter="name",
        )
        with locked_folder(self._folder, busy=busy):
            if not self.resume:
                self._remove_states()
            try:
                yield
            finally:
                if not self._states():
                    shutil.rmtree(self._folder, ignore_errors=True)

    def record_end(self, stopped: str, *, notes: Sequence[str], seconds_before: float) -> None:
        """Take note of how a training ended."""
        self._interrupted |= stopped == "interrupted"
        self.notes += notes
        self.seconds_before += seconds_before

    def close(self) -> None:
        """All is published: nothing has to be resumed any more, if nothing was interrupted."""
        if self._interrupted:
            self.notes.append("the training was interrupted; the same command with --resume goes on with it")
        else:
            shutil.rmtree(self._folder, ignore_errors=True)

    def resume_hint(self) -> str:
        """What to do after a command was ended from outside."""
        if not self._states():
            return "nothing was saved yet, so the same command begins anew"
        return f"the training is saved in {self._folder}; the same command with --resume goes on with it"

    def _states(self) -> list[Path]:
        return sorted(self._folder.glob(f"*/{_STATE_FILE}"))

    def _remove_states(self) -> None:
        if states := self._states():
            titles = ", ".join(path.parent.name for path in states)
            self.notes.append(
                f"an unfinished training ({titles}) was removed; with --resume it would have gone on"
            )
        for path in states:
            shutil.rmtree(path.parent, ignore_errors=True)
