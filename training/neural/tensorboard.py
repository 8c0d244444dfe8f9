"""Records of a run as files that TensorBoard shows while it goes on; the package is optional."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from models.errors import InvalidInputError
from training.neural.history import HistoryRecord


class TensorBoardWriter:
    """Writes records into a folder; does nothing without one.

    Args:
        folder: where to; empty for nowhere.
        step: updates made before; what is there of later ones is hidden.

    Attributes:
        failure: why nothing more is shown; empty while nothing is wrong.

    Raises:
        InvalidInputError: the package is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: str, *, step: int = 0) -> None:
        self.failure = ""
        self._folder = folder
        self._writer: Any = None
        if not folder:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InvalidInputError(
                f"train.tensorboard is {folder!r}, but the package tensorboard is not installed: "
                "pip install 'gramophone-lm[tensorboard]', or leave the key out",
                parameter="train.tensorboard",
            ) from None
        try:
            self._writer = SummaryWriter(folder, purge_step=step + 1)
        except OSError as error:
            raise InvalidInputError(
                f"train.tensorboard is {folder!r}, which cannot be written: {error.strerror}",
                parameter="train.tensorboard",
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            with self._ignore_write_errors():
                self._writer.close()

    def add(self, record: HistoryRecord) -> None:
        """Show a record's figures over the updates."""
        if self._writer is None:
            return
        with self._ignore_write_errors():
            for name, value in record._asdict().items():
                if name not in {"step", "seconds"} and value is not None:
                    self._writer.add_scalar(f"training/{name}", value, record.step)

    @contextmanager
    def _ignore_write_errors(self) -> Iterator[None]:
        """Show no more where the file system refuses: the run is worth more than its picture."""
        try:
            yield
        except OSError as error:
            self._writer = None
            self.failure = f"cannot write to {self._folder} for TensorBoard: {error.strerror or error}"
