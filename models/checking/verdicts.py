"""From weighed alternatives to issues: how probable it is that a word is wrong, and what was meant."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import log
from typing import NamedTuple

import numpy as np

from models.checking.alternatives import Corrections, Floats, Indices
from models.checking.weighing import RescoredBatch

MIN_SUGGESTION_PROBABILITY = 1e-5
"""Of suggestions beside the first: less probable ones are mostly strings that are no words."""


class Suggestion(NamedTuple):
    """What may have been meant.

    Attributes:
        text: to stand in the place of what was typed.
        probability: that it was meant.
        gain_bits: by how much it makes the text likelier to the model alone.
        edits: how far it is from what was typed.
    """

    text: str
    probability: float
    gain_bits: float
    edits: int


class Issue(NamedTuple):
    """A place of a text that is probably wrong.

    Attributes:
        start: where it begins, in code points.
        end: where it ends.
        known: whether the model knows its words.
        probability: that something else was meant.
        suggestions: what, the most probable first.
    """

    start: int
    end: int
    known: bool
    probability: float
    suggestions: tuple[Suggestion, ...]


def find_issues(
    weighed: RescoredBatch, tokens: Sequence[str], *, threshold: float, max_suggestions: int
) -> list[Issue]:
    """The places that are wrong with at least a probability, in order; of places that overlap, the more probable.

    Args:
        weighed: a batch.
        tokens: the vocabulary.
        threshold: the probability.
        max_suggestions: of each.
    """
    found = _likely_issues(weighed, tokens, threshold, max_suggestions)
    chosen: list[Issue] = []
    for issue in sorted(found, key=lambda issue: -issue.probability):
        place = bisect_left(chosen, issue)
        before, behind = chosen[max(place - 1, 0) : place], chosen[place : place + 1]
        if all(one.end <= issue.start for one in before) and all(issue.end <= one.start for one in behind):
            chosen.insert(place, issue)
    return chosen


def error_probabilities(weighed: RescoredBatch) -> tuple[Indices, Floats]:
    """The slots that have alternatives, ascending [K], and how probable it is that something else was meant [K]."""
    order = np.argsort(weighed.alternatives.slots, kind="stable")
    slots = weighed.alternatives.slots[order]
    begins = np.flatnonzero(np.diff(slots, prepend=-1))
    if not begins.size:
        return slots, np.zeros(0)
    log_odds = np.logaddexp.reduceat(weighed.log_odds[order], begins)
    return slots[begins], np.exp(-np.logaddexp(0.0, -log_odds))


def _likely_issues(
    weighed: RescoredBatch, tokens: Sequence[str], threshold: float, max_suggestions: int
) -> Iterator[Issue]:
    slots, wrong = error_probabilities(weighed)
    for number, probability in zip(slots.tolist(), wrong.tolist(), strict=True):
        slot = weighed.slots[number]
        if probability >= threshold and not slot.exempt:
            suggestions = _suggestions(weighed, tokens, number, max_suggestions)
            yield Issue(slot.start, slot.end, slot.known, probability, suggestions)


def _suggestions(
    weighed: RescoredBatch, tokens: Sequence[str], slot: int, count: int
) -> tuple[Suggestion, ...]:
    """The most probable alternatives of a slot that are worth telling."""
    found = weighed.alternatives
    rows = np.flatnonzero(found.slots == slot)
    log_odds = weighed.log_odds[rows]
    log_right = -np.logaddexp(0.0, np.logaddexp.reduce(log_odds))
    best = np.argsort(-log_odds, kind="stable")[:count]
    worth = log_odds[best] + log_right >= log(MIN_SUGGESTION_PROBABILITY)
    worth[:1] = True
    best = rows[best[worth]]
    return tuple(
        Suggestion(
            _text(found, row, tokens),
            float(np.exp(weighed.log_odds[row] + log_right)),
            float(weighed.gains_nats[row] / log(2)),
            int(found.edits[row]),
        )
        for row in best.tolist()
    )


def _text(found: Corrections, row: int, tokens: Sequence[str]) -> str:
    """How an alternative is spelled; the empty text leaves out what was typed."""
    text: str | None = found.texts[row]
    return tokens[found.tokens[found.offsets[row]]] if text is None else text
