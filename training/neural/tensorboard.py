"""Records of a run as files that TensorBoard shows while it goes on; the package is optional."""

from types import TracebackType
from typing import Any, Self

from models.errors import InvalidInputError
from training.neural.history import HistoryRecord


class Board:
    """Writes records into a folder; does nothing without one.

    Args:
        folder: where to; empty for nowhere.
        step: updates made before; what is there of later ones is hidden.

    Raises:
        InvalidInputError: the package is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: str, *, step: int = 0) -> None:
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
            self._writer.close()

    def add(self, record: HistoryRecord) -> None:
        """Show a record's figures over the updates."""
        if self._writer is None:
            return
        for name, value in record._asdict().items():
            if name not in {"step", "seconds"} and value is not None:
                self._writer.add_scalar(f"training/{name}", value, record.step)
