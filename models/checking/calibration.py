"""Calibration of the error threshold: precision and recall measured for one version of a model.

Registries have calibrations in `<root>/.calibrations/name@7.json`.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.checkpoint.documents import DocumentStore
from models.checkpoint.manifest import check_name, is_version_number
from models.errors import InputError

_Share = Annotated[float, Field(ge=0, le=1)]


class CalibrationPoint(BaseModel):
    """Quality of a threshold.

    `precision` is the share of issues that are errors, `recall` the share of errors that are issues.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    threshold: _Share
    precision: _Share
    recall: _Share


class Calibration(BaseModel):
    """Quality by ascending threshold, measured for the version `model`.

    In the held-out text, one word in `words_per_error` was replaced by an error; all `kinds` were equally frequent.
    Rarer errors lower the precision. `corpus_sha256` is the hash of the text, `created` the time (ISO 8601, UTC).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    model: str
    kinds: list[str]
    words_per_error: Annotated[float, Field(ge=1)]
    points: Annotated[list[CalibrationPoint], Field(min_length=1, max_length=1000)]
    corpus_sha256: str
    created: str

    def threshold_for(self, precision: float) -> float:
        """Return the lowest threshold from which on the precision is at least this value.

        Raises:
            InputError: no threshold reaches it; the message names the highest precision.
        """
        first = 1 + max((k for k, one in enumerate(self.points) if one.precision < precision), default=-1)
        if first == len(self.points):
            best = max(point.precision for point in self.points)
            last = self.points[-1]
            raise InputError.of(
                "precision",
                f"is {precision:g}; {self.model} has at most {best:.3f}, and {last.precision:.3f} at its "
                f"highest threshold, {last.threshold:g}",
            )
        return self.points[first].threshold

    def precision_at(self, threshold: float) -> float | None:
        """Precision at a threshold, from the next lower measured one; None below all thresholds."""
        below = [point for point in self.points if point.threshold <= threshold]
        return below[-1].precision if below else None

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        """Raise InputError unless the points are in ascending order of their thresholds."""
        for before, after in pairwise(point.threshold for point in self.points):
            if after <= before:
                problem = f"are not in ascending order: {after:g} follows {before:g}"
                raise InputError.of("points", problem)
        return self


class CalibrationStore(DocumentStore[Calibration]):
    """Calibrations of a registry; see `DocumentStore` for errors."""

    folder, _kind, _what = ".calibrations", Calibration, "calibration"
    _hint, _name = "measure again: gramophone evaluate --task check --save-calibration", "model"

    def read(self, address: str, *, any_version: bool = False) -> Calibration | None:
        """Return the calibration of a version, `name@number`, or None.

        Args:
            address: the version.
            any_version: if it has none, return that of another version of the model: the newest older
                one, else the oldest.
        """
        model, number = _split_address(address)
        found = self._find(address)
        if found is not None or not any_version:
            return found
        others = (name.rpartition("@") for name in self.names())
        numbers = [int(which) for name, _, which in others if name == model and which.isdecimal()]
        best = max(numbers, key=lambda one: (one < number, -abs(one - number)), default=None)
        return None if best is None else self._find(f"{model}@{best}")

    def write(self, calibration: Calibration) -> str | Path:
        """Store a calibration, replacing that of the same version; return its path or URL."""
        _split_address(calibration.model)
        return self._put(calibration.model, calibration)


def _split_address(address: str) -> tuple[str, int]:
    """Return the name and the number of a version.

    Raises:
        InputError: it is no version's address, and so cannot be a file name.
    """
    name, _, number = address.partition("@")
    check_name(name, param="model")
    if not is_version_number(number):
        raise InputError.of("model", f"is {address[:200]!r}; it must be NAME@NUMBER")
    return name, int(number)
