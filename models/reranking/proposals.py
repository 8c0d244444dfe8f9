"""Proposals: other words for spans of a candidate, from any number of proposers, and the candidates made of them.

Each candidate is read once, so a proposal never applies to the result of another.
The language model and a feature of each proposer decide whether the candidates made
so are better.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from models.arrays import Int64s
from models.calls import Steps
from models.reranking.candidates import Candidate, CandidateList

CORRECTION, DISTANCE = "correction", "distance"
SPOKEN, WRITTEN, SPELLING, LETTERS = "spoken", "written", "spelling", "letters"
"""Features of proposals, of which a sum is the value of a candidate:

- `correction`: log-odds of learnt corrections
- `distance`: log-odds of phrases that are spelled nearly like the words replaced
- `spoken`: words added by numbers and abbreviations written out
- `written`: -1 for each number in digits or abbreviation, and -1 for each word that it saves
- `spelling`: -1 for words joined or split, 0 for those with a hyphen
- `letters`: 1 for initials in place of a word without vowels, -1 for others
- `doubt`: log-odds that the words replaced are wrong, by their mean confidence
"""

DOUBT = "doubt"

FORM_FEATURES = (SPOKEN, WRITTEN, SPELLING, LETTERS)
PROPOSED_FEATURES = (CORRECTION, DISTANCE, *FORM_FEATURES, DOUBT)

ProposerName: TypeAlias = Literal["corrections", "phrases", "forms"]

PROPOSERS: dict[str, ProposerName] = {CORRECTION: "corrections", DISTANCE: "phrases"}
PROPOSERS.update(dict.fromkeys(FORM_FEATURES, "forms"))
"""Names of proposers in requests and replies, by their features."""

DEFAULT_WEIGHTS = {
    CORRECTION: 1.0,
    DISTANCE: 10.0,
    SPOKEN: 3.0,
    WRITTEN: 6.0,
    SPELLING: 10.0,
    LETTERS: 4.0,
    DOUBT: 5.0,
}
"""Weights relative to that of `lm`, of requests without tuned ones; chosen on first candidates of flight enquiries,
Common Voice, CHiME-4 and LibriSpeech with a model of novels, see bench_forms."""

UNKNOWN_WEIGHT = -2.0
"""Weight of `unk` beside these with forms: words that the model has never seen are often misspelt."""

MAX_SOURCES = 5
"""Candidates of a list that others are made of, the first ones; bounds the time of long lists."""

MAX_VARIANTS = 3
"""Maximum texts made of a candidate."""

MAX_WORDS = 200
"""Maximum words of a candidate that others are made of."""

MAX_WORD_CHARS = 200
"""Maximum characters of a word in such a candidate; windows are read for each proposal."""

_CONTROL_TOKENS = 3
"""Tokens of a text besides at most one per byte: `<s>`, `</s>`, a space before it."""

_MAX_PROPOSALS = 32
"""Maximum proposals considered for a text, by their priors."""

_MAX_PATHS = 16
"""Maximum combinations of proposals that are compared."""


class Proposal(NamedTuple):
    """Other words for those from `begin` to before `end`.

    Attributes:
        begin: first word.
        end: word after the last.
        written: replacement; may be empty.
        feature: feature of the proposer.
        value: its value for this replacement.
        prior: natural logarithm of how much more probable the replacement is than
            the words, before any model.
        heard: the words; of replacements in candidates only.
        doubt: log-odds that they are wrong; 0 if their confidences are unknown.
    """

    begin: int
    end: int
    written: str
    feature: str
    value: float
    prior: float
    heard: str = ""
    doubt: float = 0.0


class Proposer(Protocol):
    """Source of proposals."""

    def propose(self, words: Sequence[str]) -> Iterable[Proposal | None]:
        """Return proposals for spans of words, with None between steps of some milliseconds."""
        ...


@dataclass(frozen=True, slots=True)
class ProposedCandidate(Candidate):
    """Candidate made from another, with its given features.

    Attributes:
        origin: index of the other candidate in its list.
        replacements: replacements from left to right, at least one.
    """

    origin: int = 0
    replacements: tuple[Proposal, ...] = ()


_Path: TypeAlias = tuple[float, tuple[Proposal, ...]]
"""Sum of the gains of proposals without overlap, and the proposals from left to right."""


def replacements_of(candidate: Candidate) -> tuple[Proposal, ...]:
    """Return the replacements that made a candidate; none for one of the first pass."""
    return candidate.replacements if isinstance(candidate, ProposedCandidate) else ()


def sum_of(feature: str, replacements: Iterable[Proposal]) -> float:
    """Sum a feature of proposals."""
    if feature == DOUBT:
        return sum((one.doubt for one in replacements), 0.0)
    return sum((one.value for one in replacements if one.feature == feature), 0.0)


def origins_of(candidates: Sequence[Candidate]) -> Int64s:
    """Return the index of each one's original candidate, or its own [C]."""
    origins = [
        candidate.origin if isinstance(candidate, ProposedCandidate) else index
        for index, candidate in enumerate(candidates)
    ]
    return np.array(origins, np.int64)


def proposals_of(words: Sequence[str], proposers: Iterable[Proposer]) -> Steps[list[Proposal]]:
    """Return the proposals for a text, at most `_MAX_PROPOSALS` of each proposer, by their priors.

    There are none for texts of more than `MAX_WORDS` words, or with a word of more
    than `MAX_WORD_CHARS` characters.
    """
    if len(words) > MAX_WORDS or max(map(len, words), default=0) > MAX_WORD_CHARS:
        return []
    found: list[Proposal] = []
    for proposer in proposers:
        proposals: list[Proposal] = []
        for one in proposer.propose(words):
            if one is None:
                yield
            else:
                proposals.append(one)
        if len(proposals) > _MAX_PROPOSALS:
            proposals = nlargest(_MAX_PROPOSALS, proposals, key=attrgetter("prior"))
        found += proposals
    return found


def variants(
    words: Sequence[str], proposals: Sequence[Proposal], gains: Sequence[float]
) -> list[tuple[str, tuple[Proposal, ...]]]:
    """Return the texts of the best combinations of proposals, at most `MAX_VARIANTS`, with their replacements."""
    texts: dict[str, tuple[Proposal, ...]] = {}
    for _, path in _best_paths(proposals, gains):
        replaced = [*words]
        for one in reversed(path):
            replaced[one.begin : one.end] = [one.written]
        result = " ".join(filter(None, replaced))
        if result and result not in texts:
            texts[result] = tuple(one._replace(heard=" ".join(words[one.begin : one.end])) for one in path)
        if len(texts) == MAX_VARIANTS:
            break
    return list(texts.items())


def _best_paths(proposals: Sequence[Proposal], gains: Sequence[float]) -> list[_Path]:
    """Combine proposals, in order, without overlaps; greatest sums of gains first."""
    paths: list[_Path] = [(0.0, ())]
    for one, gain in sorted(zip(proposals, gains, strict=True), key=lambda pair: pair[0].begin):
        paths += [
            (total + gain, (*before, one))
            for total, before in paths
            if not before or before[-1].end <= one.begin
        ]
        if len(paths) > _MAX_PATHS:
            paths = nlargest(_MAX_PATHS, paths, key=itemgetter(0))
    return sorted((path for path in paths if path[1]), key=itemgetter(0), reverse=True)


def with_replacements(
    one: CandidateList,
    sources: Sequence[tuple[Sequence[str], Sequence[Proposal], Sequence[float]]],
    max_tokens: int,
) -> CandidateList:
    """Append candidates of proposals with texts new to the list.

    Texts that may have more than `max_tokens` tokens with their context, by their
    bytes, are left out.

    Args:
        one: the list.
        sources: words, proposals and their gains of its first candidates.
        max_tokens: maximum tokens of a text.
    """
    seen = set[str]()
    max_bytes = max_tokens - _num_bytes(one.context) - _CONTROL_TOKENS
    made: list[Candidate] = []
    for index, (candidate, source) in enumerate(zip(one.candidates, sources, strict=False)):
        seen.add(candidate.text)
        for text, replacements in variants(*source):
            if text not in seen and _num_bytes(text) <= max_bytes:
                seen.add(text)
                made.append(
                    ProposedCandidate(text, candidate.features, origin=index, replacements=replacements)
                )
    return replace(one, candidates=(*one.candidates, *made)) if made else one


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
