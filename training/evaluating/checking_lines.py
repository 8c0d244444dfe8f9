"""What is found in lines with errors: by the method, by the same without right context, and by surprisal alone."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf, log
from typing import NamedTuple

import numpy as np

from models.checking.asking import result_of
from models.checking.checker import Checker
from models.checking.settings import CheckOptions, SearchSettings
from models.checking.verdicts import Issue, issues_of
from models.checking.weighing import Weighed
from models.checkpoint.load import Checkpoint
from training.evaluating.checking_errors import DamagedLine
from training.evaluating.checking_figures import Detections

_LEAST = 1e-4
"""Issues that are less probable are not looked at."""

_MAX_SUGGESTIONS = 1
_LEFT_ONLY = SearchSettings(right_tokens=0)


class Outcome(NamedTuple):
    """What was made of some lines: by the method, by the same without right context, and by surprisal alone."""

    method: Detections
    left_only: Detections
    surprisal: Detections


def outcomes(checkpoint: Checkpoint, checker: Checker, lines: Sequence[DamagedLine]) -> Iterator[Outcome]:
    """What is found in each line, errors of one being those that were put into it.

    Args:
        checkpoint: the model.
        checker: for its tokenizer.
        lines: looked at together.
    """
    text = "\n".join(line.text for line in lines)
    weighed = _weighed(checkpoint, checker, text, SearchSettings())
    tokens = checkpoint.tokenizer.vocabulary.tokens
    surprises = [one for batch in weighed for one in _surprises(batch)]
    issues, left_only = (
        [
            _found(issue)
            for batch in batches
            for issue in issues_of(batch, tokens, threshold=_LEAST, max_suggestions=_MAX_SUGGESTIONS)
        ]
        for batches in (weighed, _weighed(checkpoint, checker, text, _LEFT_ONLY))
    )
    offset = 0
    for line in lines:
        yield Outcome(*(_matched(line, offset, found) for found in (issues, left_only, surprises)))
        offset += len(line.text) + 1


def _weighed(checkpoint: Checkpoint, checker: Checker, text: str, search: SearchSettings) -> list[Weighed]:
    works = checker.rescore_all(checkpoint.model, list(checker.sentences(text)), CheckOptions(search=search))
    return [result_of(checkpoint.model, work) for work in works]


class _Found(NamedTuple):
    """A place in the checked lines, its score, and the first suggestion."""

    start: int
    end: int
    score: float
    first: str = ""


def _found(issue: Issue) -> _Found:
    first = issue.suggestions[0].text if issue.suggestions else ""
    return _Found(issue.start, issue.end, issue.probability, first)


def _surprises(weighed: Weighed) -> list[_Found]:
    """Each word that could be wrong, and its surprisal in bits given what stands before it."""
    bits = (-weighed.word_log_probs / log(2)).tolist()
    slots = weighed.slots[: len(bits)]
    return [_Found(slot.start, slot.end, b) for slot, b in zip(slots, bits, strict=True) if not slot.exempt]


def _matched(line: DamagedLine, offset: int, found: Sequence[_Found]) -> Detections:
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
