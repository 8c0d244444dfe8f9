"""Candidates made of proposals: which of them are worth a score in full.

The models first compare each proposal with the words that it replaces, in a window
of a few words around them. The combinations of proposals with the greatest gains
become candidates of the list, and are scored like all others. For an n-gram model
of an order up to five, the sum of the gains of proposals that are far enough from
one another is exact.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean as mean
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Float64s, runs_by_cost
from models.calls import Steps, Work
from models.files import split_words
from models.phrases import DEFAULT_WEIGHT, NO_PHRASES, PhraseList
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.corrections import CorrectionTable
from models.reranking.features import LM, NUM_UNKNOWN, NUM_WORDS, offsets_of
from models.reranking.proposals import (
    CORRECTION,
    DEFAULT_WEIGHTS,
    DOUBT,
    MAX_SOURCES,
    SPELLING,
    SPOKEN,
    WRITTEN,
    Proposal,
    Proposer,
    proposals_of,
    with_replacements,
)
from models.reranking.ranking import LogLinearModel
from models.scoring.candidate_features import ScoringModels, score_candidates
from models.text_model import Limits

_PROPOSING = {
    **DEFAULT_WEIGHTS,
    LM: 1.0,
    NUM_WORDS: 4.0,
    NUM_UNKNOWN: -12.0,
    CORRECTION: 4.0,
    SPOKEN: 0.0,
    WRITTEN: 2.0,
    SPELLING: 2.0,
    DOUBT: 0.0,
}
"""Weights before any are tuned, with a model of the references' texts; fitted on flight enquiries and CHiME-4. With a
weight of `doubt`, too many corrections of doubtful words would be made."""

WINDOW_WORDS = 4
"""Words on either side of a proposal that the models read with it."""

_WINDOWS_PER_STEP = 512

_MIN_CONFIDENCE = 0.02
"""Minimum confidence and minimum doubt of words: recognisers tell 0 and 1 where they cannot be sure."""


_MAX_TEXTS = 100
"""Texts of a list, the first ones, among which words are looked for; bounds a step."""


def untuned_weights(phrases: PhraseList) -> LogLinearModel:
    """Return the weights by which candidates are proposed before any are tuned."""
    return LogLinearModel(weights={**_PROPOSING, **dict.fromkeys(phrases.features, DEFAULT_WEIGHT)})


class ProposalSource(NamedTuple):
    """Words of a candidate and proposals for them."""

    words: list[str]
    proposals: list[Proposal]

    def windows(self) -> tuple[list[str], list[int], list[int]]:
        """Return distinct texts, and for each proposal the index of its text with and without it."""
        numbers: dict[str, int] = {}
        before, after = list[int](), list[int]()
        for one in self.proposals:
            left = self.words[max(one.begin - WINDOW_WORDS, 0) : one.begin]
            right = self.words[one.end : one.end + WINDOW_WORDS]
            for rows, inner in (
                (before, self.words[one.begin : one.end]),
                (after, [one.written] if one.written else []),
            ):
                rows.append(numbers.setdefault(" ".join([*left, *inner, *right]), len(numbers)))
        return list(numbers), before, after


def make_proposers(
    models: ScoringModels,
    *,
    corrections: CorrectionTable | None = None,
    phrases: PhraseList = NO_PHRASES,
    forms: str | None = None,
) -> list[Proposer]:
    """Return the sources of proposals for some models.

    Takes up to a tenth of a second for 10,000 phrases or the numbers of a language.

    Args:
        models: scoring models; the words that the main one knows are replaced less
            readily.
        corrections: learnt corrections.
        phrases: phrases to propose for words that are spelled nearly like them.
        forms: language in which to propose forms of numbers and abbreviations.

    Raises:
        InputError: numbers of the language cannot be written out.
        UnsupportedError: the library for numbers is not installed.
    """
    proposers: list[Proposer] = [] if corrections is None else [corrections]
    is_known = models.parts[0].is_known_word if models.parts else None
    if phrases:
        from models.reranking.similar_phrases import SimilarPhrases  # compiled, and rarely used

        proposers.append(SimilarPhrases(phrases, is_known))
    if forms is not None:
        from models.reranking.forms import Forms

        proposers.append(Forms(forms, is_known))
    return proposers


def propose_candidates(
    models: ScoringModels,
    lists: Sequence[CandidateList],
    proposers: Sequence[Proposer],
    weighting: LogLinearModel,
    limits: Limits,
    *,
    phrases: PhraseList = NO_PHRASES,
    num_read: Sequence[int] = (),
) -> Work[Any, list[CandidateList]]:
    """Append candidates with replaced words to lists.

    Lists with a continuation, whose candidates are contexts, stay unchanged, and
    texts that may have too many tokens are left out.

    Args:
        models: scoring models; without a main model, the weighted values of the
            proposals decide.
        lists: candidate lists.
        proposers: sources of proposals.
        weighting: weights of the features.
        limits: of one text with its context.
        phrases: phrases that candidates may have.
        num_read: tokens before each list that are not in its context.
    """
    extended = list(lists)
    sources: list[list[ProposalSource]] = []
    for one in lists:
        found = list[ProposalSource]()
        if one.continuation is None:
            found = yield from proposals_for(one, proposers, doubts=DOUBT in weighting.weights)
        sources.append(found)
    for rows in runs_by_cost([sum(len(s.proposals) for s in many) for many in sources], _WINDOWS_PER_STEP):
        gains = yield from _gains(
            [s for many in sources[rows] for s in many if s.proposals], models, weighting, limits, phrases
        )
        for number in range(rows.start, rows.stop):
            combined = [
                (s.words, s.proposals, gains.pop(0).tolist() if s.proposals else []) for s in sources[number]
            ]
            most = limits.max_tokens_per_sequence - (num_read[number] if num_read else 0)
            extended[number] = with_replacements(lists[number], combined, most)
            yield None
    return extended


def proposals_for(
    given: CandidateList, proposers: Sequence[Proposer], *, doubts: bool
) -> Steps[list[ProposalSource]]:
    """Return the proposals for the first candidates of a list, with their doubts if wanted."""
    found = []
    for candidate in given.candidates[:MAX_SOURCES]:
        words = split_words(candidate.text)
        found.append(ProposalSource(words, (yield from proposals_of(words, proposers))))
        yield
    return _with_doubts(found, given) if doubts else found


def _with_doubts(sources: Sequence[ProposalSource], given: CandidateList) -> list[ProposalSource]:
    """Add the doubts in the words replaced: by confidences, else by the share of the list's texts with the words."""
    candidates = given.candidates[:_MAX_TEXTS]
    is_list = len(candidates) > 1 and any(source.proposals for source in sources)
    texts = [f" {' '.join(split_words(one.text))} " for one in candidates] if is_list else []

    @cache
    def share_of(heard: str) -> float:
        # smoothed, as if half a text more had the words and half a text more had not; of a single text, one half
        return (sum(f" {heard} " in text for text in texts) + 0.5) / (len(texts) + 1)

    doubted = []
    for (words, proposals), candidate in zip(sources, candidates, strict=False):
        sure = candidate.confidences
        confidences = [
            mean(sure[one.begin : one.end]) if sure else share_of(" ".join(words[one.begin : one.end]))
            for one in proposals
        ]
        replaced = [
            one._replace(doubt=_log_odds_wrong(c)) for one, c in zip(proposals, confidences, strict=True)
        ]
        doubted.append(ProposalSource(words, replaced))
    return doubted


def _log_odds_wrong(confidence: float) -> float:
    right = min(max(confidence, _MIN_CONFIDENCE), 1 - _MIN_CONFIDENCE)
    return math.log((1 - right) / right)


def _gains(
    sources: Sequence[ProposalSource],
    models: ScoringModels,
    weighting: LogLinearModel,
    limits: Limits,
    phrases: PhraseList,
) -> Work[Any, list[Float64s]]:
    """Return how much each proposal raises the total of its window, by source [P]."""
    gains = [
        np.array(
            [
                weighting.weights.get(one.feature, 0.0) * one.value
                + weighting.weights.get(DOUBT, 0.0) * one.doubt
                for one in source.proposals
            ]
        )
        for source in sources
    ]
    if not models.parts or not sources:
        return gains
    windows = [source.windows() for source in sources]
    texts = [CandidateList(None, "", tuple(map(Candidate, found))) for found, _, _ in windows]
    # windows are bounded by themselves, and texts that are too long are left out later
    unbounded = replace(limits, max_tokens_per_sequence=sys.maxsize)
    scores = yield from score_candidates(models, texts, unbounded, phrases=phrases)
    features = scores.features
    weights = {name: weight for name, weight in weighting.weights.items() if name in features.names}
    totals = LogLinearModel(weights=weights).totals(features.matrix([*weights], {}))
    # of two impossible texts, neither gains
    possible = np.where(np.isneginf(totals), np.finfo(np.float64).min / 4, totals)
    offsets = offsets_of(texts)
    return [
        own + (possible[first + np.array(after)] - possible[first + np.array(before)])
        for own, first, (_, before, after) in zip(gains, offsets, windows, strict=False)
    ]
