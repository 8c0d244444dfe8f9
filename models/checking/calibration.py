"""Calibration of the error threshold: precision and recall measured for one version of a model."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from models.errors import InvalidInputError

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
    """Points measured for `model`, a version's address, by ascending threshold.

    Errors were put into held-out text: one word in `words_per_error` was wrong, of the `kinds` named, each as often as
    the others. With fewer errors precision is lower. `corpus_sha256` is the text's, `created` ISO 8601, UTC.
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
        """The lowest threshold at which issues are errors at least this often, and at every higher one too.

        Raises:
            InvalidInputError: no threshold was as precise; the message names the most precise.
        """
        reached = [point.precision >= precision for point in self.points]
        count = next((k for k, enough in enumerate(reversed(reached)) if not enough), len(reached))
        if not count:
            best = max(point.precision for point in self.points)
            last = self.points[-1]
            raise InvalidInputError(
                f"precision is {precision:g}, but the highest threshold measured for {self.model}, "
                f"{last.threshold:g}, has {last.precision:.3f}, and none more than {best:.3f}",
                parameter="precision",
            )
        return self.points[len(self.points) - count].threshold

    def precision_at(self, threshold: float) -> float | None:
        """The precision at a threshold, by the next lower one that was measured; None below all of them."""
        below = [point for point in self.points if point.threshold <= threshold]
        return below[-1].precision if below else None

    def check_order(self) -> None:
        """Refuse points that are not in ascending order of their thresholds.

        Raises:
            InvalidInputError: the message names two of them.
        """
        for before, after in pairwise(self.points):
            if after.threshold <= before.threshold:
                raise InvalidInputError(
                    f"points are not in ascending order: {after.threshold:g} follows {before.threshold:g}",
                    parameter="points",
                )
