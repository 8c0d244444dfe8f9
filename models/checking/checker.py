"""Checker of texts for one tokenizer, and the issues found.

`Checker` is built once per tokenizer, refers to no model, and yields one rescoring per batch of
sentences. `find_issues` turns rescored candidates into issues: the probability that a word is
wrong, and suggestions.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Float64s, Int64s
from models.calls import Work, map_in_steps, view
from models.checking.candidates import CandidateGenerator, CheckBatch
from models.checking.error_model import CheckSettings, ErrorModel, GivenSpan
from models.checking.generators import SubwordGenerator, WordGenerator
from models.checking.rescoring import RescoredBatch, rescore_batch
from models.checking.sentences import (
    MAX_SENTENCE_TOKENS,
    Sentence,
    SentenceSplitter,
    WordSentenceSplitter,
    sentence_splitter_for,
)
from models.errors import InputError
from models.language_model import LanguageModel, is_lookup
from models.slot_model import without_members
from models.tokenizers import Tokenizer

_ISSUE_CHARS = 1024
"""Cost of an issue with its suggestions, in characters read."""

_MAX_BATCH_TOKENS = 512
"""Maximum tokens of a batch of sentences: all their states are in memory."""

MIN_SUGGESTION_PROBABILITY = 1e-5
"""Minimum probability of later suggestions; others are mostly no words."""


class Checker:
    """Checker for the models with one tokenizer.

    Creation takes some hundredths of a second for large vocabularies.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.splitter: SentenceSplitter = sentence_splitter_for(tokenizer)
        self._proposer: CandidateGenerator = (
            WordGenerator(self.splitter)
            if isinstance(self.splitter, WordSentenceSplitter)
            else SubwordGenerator(self.splitter)
        )

    def log_spelling(self, word: str) -> float:
        """Return ln P(spelling | unknown word) if one token stands for all, else 0."""
        return self._proposer.log_spelling(word)

    def sentences(self, text: str, offset: int = 0) -> Iterator[Sentence]:
        """Yield the sentences that have tokens; `offset` is the start of `text` in the whole text."""
        return self.splitter.sentences(text, lookahead=self._proposer.right_tokens, offset=offset)

    def rescore_all(
        self,
        model: LanguageModel[Any],
        sentences: Sequence[Sentence],
        options: CheckSettings,
    ) -> Iterator[Work[Any, RescoredBatch]]:
        """Yield a rescoring per batch of sentences; each must be run before the next.

        Args:
            model: any left-to-right model.
            sentences: sentences of the text, in order.
            options: settings of the check.

        Raises:
            InputError: a suggestion's span is not within one sentence.
        """
        given: dict[int, list[GivenSpan]] = {}  # by sentence
        offsets = [one.offset for one in sentences]
        for span in options.given:
            index = bisect_right(offsets, span.start) - 1
            if index < 0 or span.end > offsets[index] + len(sentences[index].text):
                raise InputError.of(
                    span.param,
                    f"spans {span.start} to {span.end}; a span must be within one line that has a word, "
                    f"and within one part of a line of more than {MAX_SENTENCE_TOKENS} tokens",
                )
            given.setdefault(index, []).append(span)
        channel, direct = ErrorModel(options), is_lookup(model)
        after = options.search.right_tokens
        if after is None:  # n-gram models use order - 1 tokens of context
            order = getattr(without_members(model), "order", 1)
            after = int(order) - 1 if direct else self._proposer.right_tokens
        carried: list[Any] = []

        def work(first: int, some: Sequence[Sentence]) -> Work[Any, RescoredBatch]:
            own = {index: given[first + index] for index in range(len(some)) if first + index in given}
            batch = CheckBatch(model, some, channel, own)
            state = carried.pop() if some[0].continues_line else model.initial_state(len(some))
            # a network's reads share batches with other requests
            state = state if direct else view(state)
            rescored = yield from rescore_batch(self._proposer, batch, state=state, right_tokens=after)
            if rescored.state is not None:
                carried.append(rescored.state)
            return rescored

        first = 0
        for batch in _batches(sentences):
            yield work(first, batch)
            first += len(batch)


def _batches(sentences: Sequence[Sentence]) -> Iterator[list[Sentence]]:
    """Group sentences into batches.

    A line that continues ends its batch, and the next part is a batch alone.
    """
    batch: list[Sentence] = []
    size = 0
    for sentence in sentences:
        if batch and (
            sentence.continues_line
            or size + len(sentence.ids) > _MAX_BATCH_TOKENS
            or batch[-1].continues_line
        ):
            yield batch
            batch, size = [], 0
        batch.append(sentence)
        size += len(sentence.ids)
    if batch:
        yield batch


class Suggestion(NamedTuple):
    """Suggested correction.

    Attributes:
        text: replacement for the typed text.
        probability: probability that it is intended.
        gain_bits: gain of the text's log-probability by the model, in bits.
        edits: edit distance from the typed text.
    """

    text: str
    probability: float
    gain_bits: float
    edits: int


class Issue(NamedTuple):
    """Span of a text that is probably wrong.

    Attributes:
        start: its start, in code points.
        end: its end.
        known: True if all its words are known.
        probability: probability that a different text is intended.
        suggestions: corrections, the most probable first.
    """

    start: int
    end: int
    known: bool
    probability: float
    suggestions: tuple[Suggestion, ...]


def find_issues(
    rescored: RescoredBatch, tokens: Sequence[str], *, threshold: float, max_suggestions: int
) -> Work[Any, list[Issue]]:
    """Return issues above the threshold, in order; of overlapping ones, the most probable."""
    slots, wrong = error_probabilities(rescored)
    likely = wrong >= threshold
    pairs = zip(slots[likely].tolist(), wrong[likely].tolist(), strict=True)

    def issue(pair: tuple[int, float]) -> Issue:
        slot = rescored.slots[pair[0]]
        suggestions = _suggestions(rescored, tokens, pair[0], max_suggestions)
        return Issue(slot.start, slot.end, slot.known, pair[1], suggestions)

    reported = [pair for pair in pairs if not rescored.slots[pair[0]].exempt]
    found = yield from map_in_steps(reported, issue, size=lambda _: _ISSUE_CHARS)
    return without_overlaps(found)


def without_overlaps(issues: Iterable[Issue]) -> list[Issue]:
    """Return issues in text order; of overlapping ones, the most probable."""
    chosen = []
    ranked = sorted(issues, key=lambda one: -one.probability)
    first = min((one.start for one in ranked), default=0)
    last = max((one.end for one in ranked), default=0)
    is_taken = np.zeros(last - first, bool)
    for issue in ranked:
        span = slice(issue.start - first, issue.end - first)
        if not is_taken[span].any():
            is_taken[span] = True
            chosen.append(issue)
    return sorted(chosen, key=lambda one: one.start)


def error_probabilities(rescored: RescoredBatch) -> tuple[Int64s, Float64s]:
    """Return slots with candidates, ascending [K], and their probabilities of an error [K]."""
    order = np.argsort(rescored.alternatives.slots, kind="stable")
    slots = rescored.alternatives.slots[order]
    begins = np.flatnonzero(np.diff(slots, prepend=-1))
    log_odds = rescored.log_odds[order]
    is_right = rescored.alternatives.edits[order] == 0
    right, wrong = (
        np.logaddexp.reduceat(np.where(those, log_odds, -np.inf), begins) for those in (is_right, ~is_right)
    )
    chosen = wrong > -np.inf
    log_odds = wrong[chosen] - np.logaddexp(0.0, right[chosen])
    return slots[begins][chosen], np.exp(-np.logaddexp(0.0, -log_odds))


def _suggestions(
    rescored: RescoredBatch, tokens: Sequence[str], slot: int, count: int
) -> tuple[Suggestion, ...]:
    """Select the most probable corrections of a slot."""
    found = rescored.alternatives
    rows = np.flatnonzero(found.slots == slot)
    log_right = -np.logaddexp(0.0, np.logaddexp.reduce(rescored.log_odds[rows]))
    rows = rows[found.edits[rows] > 0]
    log_odds = rescored.log_odds[rows]
    order = np.argsort(-log_odds, kind="stable")
    worth = log_odds[order] + log_right >= log(MIN_SUGGESTION_PROBABILITY)
    worth[:1] = True
    chosen: dict[str, Suggestion] = {}
    for row in rows[order[worth]].tolist():
        text = tokens[found.tokens[found.offsets[row]]] if found.texts[row] is None else found.texts[row]
        chance = float(np.exp(rescored.log_odds[row] + log_right))
        if (same := chosen.get(text)) is not None:  # in another case
            chosen[text] = same._replace(probability=same.probability + chance)
        elif len(chosen) < count:
            gain = float(rescored.gains_nats[row] / log(2))
            chosen[text] = Suggestion(text, chance, gain, int(found.edits[row]))
    return tuple(sorted(chosen.values(), key=lambda one: -one.probability))
