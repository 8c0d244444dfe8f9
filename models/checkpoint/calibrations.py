"""What thresholds of error checking are worth, beside the models of a registry: `.calibrations/name@7.json`.

A version is immutable, and a calibration depends on the text it was measured on: so it lies beside, and may be
replaced.
"""

from pathlib import Path

from models.checking.calibration import Calibration, parse_calibration
from models.checkpoint.documents import MAX_DOCUMENT_BYTES, open_document_store
from models.checkpoint.registry import Address
from models.checkpoint.versions import check_name
from models.errors import FormatError, InvalidInputError

CALIBRATIONS_FOLDER = ".calibrations"


class CalibrationStore:
    """The calibrations of a registry.

    Args:
        registry: its address.

    Raises:
        RegistryError: it is remote and needs a package that is not installed.
    """

    def __init__(self, registry: Address) -> None:
        self._documents = open_document_store(registry, CALIBRATIONS_FOLDER)

    def read(self, address: str) -> Calibration | None:
        """The calibration of a version; None if it has none.

        Args:
            address: `name@number`.

        Raises:
            FormatError: its file is damaged.
            RegistryError: it cannot be read.
        """
        name = _file_name(address)
        content = self._documents.read(name)
        if content is None:
            return None
        path = self._documents.display_path(name)
        hint = "measure again: gramophone evaluate --task check --save-calibration"
        if len(content) > MAX_DOCUMENT_BYTES:
            raise FormatError(path, f"has more than {MAX_DOCUMENT_BYTES} bytes: no calibration", hint=hint)
        try:
            calibration = parse_calibration(content)
        except InvalidInputError as error:
            raise FormatError(path, f"is no calibration: {error}", hint=hint) from None
        if calibration.model != address:
            raise FormatError(
                path, f"is the calibration of {calibration.model!r}, not of {address!r}", hint=hint
            )
        return calibration

    def write(self, calibration: Calibration) -> str | Path:
        """Store a calibration; one of the same version is replaced.

        Returns:
            Where it lies now.

        Raises:
            InvalidInputError: the model's address cannot be a file's name.
            RegistryError: the registry cannot be written to.
        """
        name = _file_name(calibration.model)
        self._documents.write(name, calibration.model_dump_json(indent=1).encode() + b"\n")
        return self._documents.display_path(name)


def _file_name(address: str) -> str:
    name, _, number = address.partition("@")
    check_name(name, parameter="model")
    check_name(number, parameter="model")
    return f"{name}@{number}.json"
