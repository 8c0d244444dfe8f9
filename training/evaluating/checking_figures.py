"""How well errors are found: precision, recall and F0.5 of scores that are compared with a threshold."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

ScoreArray = npt.NDArray[np.float64]

_BETA_SQUARED = 0.25
"""Of F0.5: precision counts twice as much as recall, since people mind false alarms more (Ng et al. 2014)."""


class Detections(NamedTuple):
    """What a method made of a text with errors.

    Attributes:
        errors: the score of each error [E]; minus infinity where nothing was found.
        corrected: whether its first suggestion is what was meant [E].
        alarms: scores of what was found where no error is [A].
    """

    errors: ScoreArray
    corrected: npt.NDArray[np.bool_]
    alarms: ScoreArray


class DetectionFigures(NamedTuple):
    """A method with one threshold.

    Attributes:
        threshold: above or at which a score is an issue.
        precision: the share of issues that are errors; 1 where there are none.
        recall: the share of errors that are issues.
        f0_5: their weighted harmonic mean.
        correction_accuracy: of errors that are issues, those whose first suggestion is right; None without any.
    """

    threshold: float
    precision: float
    recall: float
    f0_5: float
    correction_accuracy: float | None

    def as_facts(self) -> dict[str, Any]:
        """The figures by name."""
        return self._asdict()


def concatenate_detections(parts: Sequence[Detections]) -> Detections:
    """All of several."""
    return Detections(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def figures_at_threshold(found: Detections, threshold: float) -> DetectionFigures:
    """A method's figures with a threshold."""
    hit = found.errors >= threshold
    right, wrong = int(hit.sum()), int((found.alarms >= threshold).sum())
    precision = right / (right + wrong) if right + wrong else 1.0
    recall = right / len(found.errors) if len(found.errors) else 0.0
    accuracy = float(found.corrected[hit].mean()) if right else None
    return DetectionFigures(threshold, precision, recall, f_score(precision, recall), accuracy)


def best_threshold(found: Detections) -> float:
    """The threshold with the highest F0.5, the highest of several; 1 if no error was found at all."""
    candidates = np.unique(found.errors[np.isfinite(found.errors)])
    if not candidates.size:
        return 1.0
    errors, alarms = np.sort(found.errors), np.sort(found.alarms)
    right = len(errors) - np.searchsorted(errors, candidates)
    wrong = len(alarms) - np.searchsorted(alarms, candidates)
    precision, recall = right / (right + wrong), right / len(errors)
    scores = (1 + _BETA_SQUARED) * precision * recall / (_BETA_SQUARED * precision + recall)
    return float(candidates[len(scores) - 1 - int(np.argmax(scores[::-1]))])


def f_score(precision: float, recall: float) -> float:
    """F0.5; 0 where both are."""
    if not precision and not recall:
        return 0.0
    return (1 + _BETA_SQUARED) * precision * recall / (_BETA_SQUARED * precision + recall)
