"""What is found in lines with errors: by the method, by the same without right context, and by surprisal alone."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf, log
from typing import NamedTuple

import numpy as np

from models.checking.asking import run_calls
from models.checking.checker import Checker
from models.checking.settings import CandidateSettings, CheckSettings
from models.checking.verdicts import Issue, find_issues
from models.checking.weighing import RescoredBatch
from models.checkpoint.load import Checkpoint
from training.evaluating.checking_errors import CorruptedLine
from training.evaluating.checking_figures import Detections

_MIN_PROBABILITY = 1e-4
"""Issues that are less probable are not looked at."""

_MAX_SUGGESTIONS = 1
_LEFT_ONLY = CandidateSettings(right_tokens=0)


class LineDetections(NamedTuple):
    """What was made of some lines: by the method, by the same without right context, and by surprisal alone."""

    method: Detections
    left_only: Detections
    surprisal: Detections


def detect_errors(
    checkpoint: Checkpoint, checker: Checker, lines: Sequence[CorruptedLine]
) -> Iterator[LineDetections]:
    """What is found in each line, errors of one being those that were put into it.

    Args:
        checkpoint: the model.
        checker: for its tokenizer.
        lines: looked at together.
    """
    text = "\n".join(line.text for line in lines)
    weighed = _check_line(checkpoint, checker, text, CandidateSettings())
    tokens = checkpoint.tokenizer.vocabulary.tokens
    surprises = [one for batch in weighed for one in _surprisal_detections(batch)]
    issues, left_only = (
        [
            _detection(issue)
            for batch in batches
            for issue in find_issues(
                batch, tokens, threshold=_MIN_PROBABILITY, max_suggestions=_MAX_SUGGESTIONS
            )
        ]
        for batches in (weighed, _check_line(checkpoint, checker, text, _LEFT_ONLY))
    )
    offset = 0
    for line in lines:
        yield LineDetections(
            *(_match_errors(line, offset, found) for found in (issues, left_only, surprises))
        )
        offset += len(line.text) + 1


def _check_line(
    checkpoint: Checkpoint, checker: Checker, text: str, search: CandidateSettings
) -> list[RescoredBatch]:
    works = checker.rescore_all(checkpoint.model, list(checker.sentences(text)), CheckSettings(search=search))
    return [run_calls(checkpoint.model, work) for work in works]


class _Detection(NamedTuple):
    """A place in the checked lines, its score, and the first suggestion."""

    start: int
    end: int
    score: float
    first: str = ""


def _detection(issue: Issue) -> _Detection:
    first = issue.suggestions[0].text if issue.suggestions else ""
    return _Detection(issue.start, issue.end, issue.probability, first)


def _surprisal_detections(weighed: RescoredBatch) -> list[_Detection]:
    """Each word that could be wrong, and its surprisal in bits given what stands before it."""
    bits = (-weighed.word_log_probs / log(2)).tolist()
    slots = weighed.slots[: len(bits)]
    return [
        _Detection(slot.start, slot.end, b) for slot, b in zip(slots, bits, strict=True) if not slot.exempt
    ]


def _match_errors(line: CorruptedLine, offset: int, found: Sequence[_Detection]) -> Detections:
    """Which errors of a line were found, and what else: anything that overlaps an error is about that error."""
    errors, end = line.errors, offset + len(line.text)
    scores, corrected = [-inf] * len(errors), [False] * len(errors)
    alarms: list[float] = []
    for one in found[bisect_left(found, (offset,)) : bisect_left(found, (end,))]:
        start, stop = one.start - offset, one.end - offset
        about = next((k for k, e in enumerate(errors) if e.start < stop and start < e.end), None)
        if about is None:
            alarms.append(one.score)
        elif one.score > scores[about]:
            scores[about] = one.score
            error = errors[about]
            corrected[about] = (start, stop) == (error.start, error.end) and one.first == error.meant
    return Detections(np.array(scores), np.array(corrected, dtype=bool), np.array(alarms))
