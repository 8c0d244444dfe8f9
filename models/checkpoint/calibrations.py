"""What thresholds of error checking are worth, beside the models of a registry.

<root>/.calibrations/<name>@<number>.json    visible once its file has this name
<root>/.calibrations/.tmp-…                  one being written; ignored by readers

A version is immutable, and a calibration depends on the text it was measured on: so it lies beside, and may be
replaced.
"""

import contextlib
import os
import uuid
from pathlib import Path

from models.checking.calibration import Calibration, parse_calibration
from models.checkpoint.registry import check_name
from models.errors import FormatError, InvalidInputError, RegistryError

FOLDER = ".calibrations"
_MAX_BYTES = 1 << 20


class CalibrationStore:
    """The calibrations of a registry.

    Args:
        registry: its folder.
    """

    def __init__(self, registry: Path) -> None:
        self._folder = registry / FOLDER

    def read(self, address: str) -> Calibration | None:
        """The calibration of a version; None if it has none.

        Args:
            address: `name@number`.

        Raises:
            FormatError: its file is damaged.
            RegistryError: it cannot be read.
        """
        path = self._path(address)
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RegistryError(f"cannot read {path}: {error.strerror}") from None
        hint = "measure again: gramophone evaluate --task check --save-calibration"
        if len(content) > _MAX_BYTES:
            raise FormatError(path, f"has more than {_MAX_BYTES} bytes: no calibration", hint=hint)
        try:
            calibration = parse_calibration(content)
        except InvalidInputError as error:
            raise FormatError(path, f"is no calibration: {error}", hint=hint) from None
        if calibration.model != address:
            raise FormatError(
                path, f"is the calibration of {calibration.model!r}, not of {address!r}", hint=hint
            )
        return calibration

    def write(self, calibration: Calibration) -> Path:
        """Store a calibration, by one rename; one of the same version is replaced.

        Raises:
            InvalidInputError: the model's address cannot be a file's name.
            RegistryError: the file system refused.
        """
        path = self._path(calibration.model)
        temporary = self._folder / f".tmp-{uuid.uuid4().hex}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(calibration.model_dump_json(indent=1).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise RegistryError(f"cannot write to {self._folder}: {error.strerror}") from error
        return path

    def _path(self, address: str) -> Path:
        name, _, number = address.partition("@")
        check_name(name, parameter="model")
        check_name(number, parameter="model")
        return self._folder / f"{name}@{number}.json"
