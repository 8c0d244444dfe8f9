"""A run that is saved every few minutes and taken up again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import InvalidInputError, RegistryError
from training.neural.resume import StateFile, changed_bounds, library_version
from training.neural.run import TrainingRun


class Saver:
    """Keeps a run in a file.

    Args:
        run: what is saved.
        path: of the file; None for nowhere.
        identity: what makes the run this run, as `identity_of` has it.

    Attributes:
        failure: why it could not be saved when that was last tried; empty where it was.
    """

    def __init__(self, run: TrainingRun, path: Path | None, identity: Mapping[str, Any]) -> None:
        self._run = run
        self._file = None if path is None else StateFile(path)
        self._identity = dict(identity)
        self._saved_at = 0.0  # seconds of the run
        self.failure = ""

    def resume(self) -> float:
        """Let the run go on from what is in the file, if anything is; of several processes, in the first one's.

        Returns:
            The seconds that it took until then.

        Raises:
            InvalidInputError: it is of another run; the message says what differs. Or another process has a
                state and the first one has none.
            FormatError: the file is damaged.
        """
        if self._file is None:
            return 0.0
        run = self._run
        processes = run.processes
        content = processes.broadcast_bytes(self._file.content() if processes.is_leader else None)
        if content is None:
            self._check_no_stale_state(self._file.path)
            return 0.0
        state = self._file.parse(content)
        try:
            version = f"{state['version']:.80}"
            changed = changed_bounds(state, self._identity, place=self._file.path.parent)
            run.check(state)
            run.resume_from(state)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise self._file.format_error(error) from None
        self._saved_at = state["seconds"]
        run.notes.append(f"resumed after {run.step:,} updates and {self._saved_at / 60:.1f} minutes")
        if changed:
            run.stopped = ""
            run.done = run.schedule.done(run.step, seconds=self._saved_at)
            run.notes.append(f"the schedule was shaped anew: {'; '.join(changed)}")
        if version != library_version():
            run.notes.append(f"begun with version {version}, this is {library_version()}")
        return self._saved_at

    def save_if_due(self, seconds: float) -> None:
        """Save if it was last done `save_minutes` ago.

        Args:
            seconds: since the run began, the same in all processes, so that all save or none.
        """
        if seconds - self._saved_at >= 60 * self._run.settings.save_minutes:
            self._saved_at = seconds
            self.save()

    def save(self) -> None:
        """Save now; the first of several processes does it for all."""
        if self._file is None:
            return
        state = {"identity": self._identity, **self._run.state()}
        if not self._run.processes.is_leader:
            return
        try:
            self._file.write(state)
        except RegistryError as error:  # no reason to lose the run as well
            self.failure = str(error)
            if self.failure not in self._run.notes:  # it may be so at every update
                self._run.notes.append(self.failure)
        else:
            self.failure = ""

    def _check_no_stale_state(self, path: Path) -> None:
        """Do not begin anew where the machines were started in another order than before."""
        places = self._run.processes.gather_texts(str(path.absolute()) if path.exists() else "")
        for rank, place in enumerate(places):
            if place:
                raise InvalidInputError(
                    f"process 0 has no saved training to go on with, but process {rank} has one, {place}: start its "
                    "machine as the first one (--node-rank 0), or go without --resume",
                    parameter="resume",
                )
