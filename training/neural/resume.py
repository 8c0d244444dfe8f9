"""State of an interrupted run in one file, replaced atomically.

The file is a SHA-256, then tensors, numbers and text in
torch's format. It is read with `weights_only`, which runs no code.
"""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from models.checkpoint.folders import fsync_path
from models.errors import FormatError, InputError, RegistryError
from models.files import replace_file
from training.neural.distributed import OWN_VERSION
from training.neural.run import TrainingRun
from training.neural.settings import BOUNDS

STATE_FORMAT = 1
"""Format number of the state; other formats are rejected."""

_DIGEST_BYTES = 32
_VERSION = f"{OWN_VERSION}, torch {torch.__version__}"
_RESTART_HINT = "without --resume, the training starts from the beginning"


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Replace a run's state file atomically: a crash leaves the old or the new one.

    The first write creates the folder.

    Raises:
        RegistryError: a file operation failed; the old file is unchanged.
    """
    content = io.BytesIO()
    torch.save({"format": STATE_FORMAT, "version": _VERSION, **state}, content)
    digest = hashlib.sha256(content.getbuffer()).digest()
    try:
        replace_file(path, digest, content.getbuffer(), temporary=path.with_name(f"{path.name}.tmp"))
        fsync_path(path.parent)
    except OSError as error:
        raise RegistryError(f"cannot save the training state in {path}: {error}") from error


def parse_state(path: Path, content: bytes) -> dict[str, Any]:
    """Parse a state file's bytes into a state on the CPU.

    Raises:
        FormatError: the bytes are not a training state, or have another format.
    """
    digest, written = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(written).digest() != digest:
        raise FormatError(path, "is not a training state, or is damaged", hint=_RESTART_HINT)
    try:
        state: Any = torch.load(io.BytesIO(written), map_location="cpu", weights_only=True)
        found = state["format"]
    except Exception as error:  # noqa: BLE001 - a malicious file can raise any exception
        raise state_error(path, error) from None
    if found != STATE_FORMAT:
        raise FormatError(path, f"has format {found!r:.40}, not {STATE_FORMAT}", hint=_RESTART_HINT)
    return dict(state)


def state_error(path: Path, error: Exception) -> FormatError:
    """Build the error for an intact file without a training state."""
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    return FormatError(path, f"does not contain a training state: {reason:.200}", hint=_RESTART_HINT)


def changed_bounds(state: Mapping[str, Any], identity: Mapping[str, Any], *, folder: Path) -> list[str]:
    """Describe each changed limit of a resumed run.

    Raises:
        InputError: anything else differs; the message lists the differences.
    """
    refused, changed = list[str](), list[str]()
    for name in {**identity, **state["identity"]}:
        before, now = state["identity"].get(name), identity.get(name)
        if before != now:
            difference = f"{name} was {before!s:.80} and is {now!s:.80}"
            if name.startswith("the "):
                difference = f"{name} has changed (sha256 {str(before)[:12]} then, {str(now)[:12]} now)"
            (changed if name.removeprefix("train.") in BOUNDS else refused).append(difference)
    if refused:
        problem = f"cannot resume the training in {folder}: {'; '.join(refused)}; {_RESTART_HINT}"
        raise InputError(problem, param="resume")
    return changed


def check_structure(given: Any, own: Any, name: str) -> None:
    """Check that part of a saved state has the types and shapes of a new run's.

    Parts empty in the new run, an empty list or None, are not compared; a tensor may be None.

    Raises:
        TypeError: a type differs; the message names the part.
        ValueError: a tensor or list has another shape.
    """
    if own is None or (given is None and isinstance(own, torch.Tensor)):
        return
    kinds = (int, float) if type(own) is float else (type(own),)
    if type(given) not in kinds and not (isinstance(own, Mapping) and isinstance(given, Mapping)):
        raise TypeError(f"{name} has the type {type(given).__name__}, not {type(own).__name__}")
    if isinstance(given, int) and abs(given) >> 63 and not (isinstance(own, int) and abs(own) >> 63):
        # allowed only in states of random generators
        raise ValueError(f"{name} has more than 63 bits")
    if isinstance(own, torch.Tensor):
        # a recurrent state computed in bfloat16 is bfloat16, an initial state is float32
        same_kind = given.dtype == own.dtype or (given.is_floating_point() and own.is_floating_point())
        if given.shape != own.shape or not same_kind:
            problem = f"{name} is {list(given.shape)} {given.dtype}, not {list(own.shape)} {own.dtype}"
            raise ValueError(problem)
    elif isinstance(own, Mapping):
        for key in own.keys() & given.keys():
            check_structure(given[key], own[key], f"{name}.{key}")
    elif isinstance(own, list) and own:
        for number, (item, own_item) in enumerate(zip(given, own, strict=True)):
            check_structure(item, own_item, f"{name}[{number}]")


def _read_bytes(path: Path) -> bytes | None:
    """Read a state file; None if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FormatError(path, error.strerror or str(error), hint=_RESTART_HINT) from None


def _check_fits(run: TrainingRun, state: Mapping[str, Any]) -> None:
    """Check that a state fits a run; every process calls it, and an error says that it does not."""
    own = run.state()
    check_structure(state, own, "state")
    if (weights := state["best"]["weights"]) is not None:
        check_structure(weights, dict(own["network"]), "best.weights")
        if differing := weights.keys() ^ own["network"].keys():
            raise ValueError(f"best.weights and the network differ in {min(differing, key=str)}")
    if state["average"]["averages"]:
        parameters = [param.data for param in run.network.parameters()]
        check_structure(state["average"]["averages"], parameters, "average.averages")


class Saver:
    """Saver of a run's state, for resuming.

    Args:
        run: the run to save.
        path: path of the state file; None saves nothing.

    Attributes:
        failure: error of the last save; empty if it succeeded.
    """

    def __init__(self, run: TrainingRun, path: Path | None) -> None:
        self._run = run
        self._path = path
        self._saved_at = 0.0  # seconds of the run
        self.failure = ""

    def resume(self) -> float:
        """Resume from the state file, if it exists; all processes use rank 0's.

        Returns:
            The seconds of the run before it was saved.

        Raises:
            InputError: the state is another run's, with the differences
                in the message; or another process has one and rank 0 none.
            FormatError: the file is damaged.
        """
        run, path = self._run, self._path
        if path is None:
            return 0.0
        processes = run.processes
        content = processes.broadcast_bytes(_read_bytes(path) if processes.is_leader else None)
        if content is None:
            paths = processes.gather_texts(str(path.absolute()) if path.exists() else "")
            for rank, found in enumerate(paths):
                if found:  # the machines were started in another order
                    raise InputError(
                        f"process 0 has no saved training, but process {rank} has one, {found}; start its "
                        "machine with --node-rank 0, or omit --resume",
                        param="resume",
                    )
            return 0.0
        state = parse_state(path, content)
        try:
            version = f"{state['version']:.80}"
            changed = changed_bounds(state, run.identity, folder=path.parent)
            _check_fits(run, state)
            run.resume_from(state)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise state_error(path, error) from None
        self._saved_at = state["seconds"]
        run.notes.append(f"resumed after {run.step:,} updates and {self._saved_at / 60:.1f} minutes")
        if changed:
            run.stopped = ""
            run.done = run.schedule.done(run.step, seconds=self._saved_at)
            run.notes.append(f"the schedule was recomputed: {'; '.join(changed)}")
        if version != _VERSION:
            run.notes.append(f"the run was started with version {version}; this is {_VERSION}")
        return self._saved_at

    def save_if_due(self, seconds: float) -> None:
        """Save if the last save was `save_minutes` ago; `seconds` are equal in all processes: all save or none."""
        if seconds - self._saved_at >= 60 * self._run.settings.save_minutes:
            self._saved_at = seconds
            self.save()

    def save(self) -> None:
        """Save now; rank 0 saves for all processes."""
        if self._path is None:
            return
        state = {"identity": self._run.identity, **self._run.state()}
        if not self._run.processes.is_leader:
            return
        try:
            write_state(self._path, state)
        except RegistryError as error:  # a failed save must not end the run
            self.failure = str(error)
            if self.failure not in self._run.notes:  # every save may fail
                self._run.notes.append(self.failure)
        else:
            self.failure = ""
