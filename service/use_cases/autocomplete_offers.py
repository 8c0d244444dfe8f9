"""Which completions are told, and in which order: the model's and the user's words mixed.

P(W) = ((1-λ) · P_model(W) + λ · P_user(W)) / ((1-λ) · P_model(prefix) + λ · P_user(prefix)), where each is joint with
what was typed; λ is 0 where the user has no words.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from models.completion.personal_text import sentence_words
from models.vocabulary import CONTROL_TOKENS
from service.use_cases.autocomplete_casing import match_case
from service.use_cases.autocomplete_masses import CompletionMass, ScoredCompletions, TypedInput

_CONTROL_TOKENS = frozenset(CONTROL_TOKENS)
"""Stand in corpora for what is no word; a vocabulary may hold them as ordinary words."""

_MIN_PROBABILITY = 1e-12
"""Less probable completions are told by nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions:
    """What is told of what is found.

    Attributes:
        limit: completions at most.
        min_probability: of each.
        by_savings: whether probability times characters spared puts them in order, else probability.
        blocklist: words and phrases without their case, one space between words.
        user_weight: λ.
    """

    limit: int
    min_probability: float
    by_savings: bool
    blocklist: frozenset[str]
    user_weight: float


class RankedCompletion(NamedTuple):
    """A completion as it is told.

    Attributes:
        text: from where the current word begins.
        suffix: what is appended for it; None where what was typed changes.
        probability: given what was typed.
        num_words: in it.
        is_complete: whether it ends with a word.
        edits: characters of the prefix that were corrected.
        of_user: whether the greater part of its probability is of the user's words.
    """

    text: str
    suffix: str | None
    probability: float
    num_words: int
    is_complete: bool
    edits: int
    of_user: bool


class CompletionRanking(NamedTuple):
    """Completions, the best first, and the part of the probability that was not followed to the end of a word."""

    offers: tuple[RankedCompletion, ...]
    unexplored_mass: float


def rank_completions(
    found: ScoredCompletions, typing: TypedInput, telling: CompletionOptions
) -> CompletionRanking:
    """The best completions of what was found."""
    weight = telling.user_weight if found.of_user else 0.0
    live = (1 - weight) * found.of_model + weight * found.of_user
    if not live:
        return CompletionRanking((), 0.0)
    offers = [
        one
        for one in _mix(found, typing, weight=weight, live=live)
        if one.probability >= max(telling.min_probability, _MIN_PROBABILITY)
        and not _is_blocked(one.text, telling.blocklist)
    ]
    return CompletionRanking(
        _best_completions(offers, typing, telling), (1 - weight) * found.unexplored / live
    )


def _mix(
    found: ScoredCompletions, typing: TypedInput, *, weight: float, live: float
) -> list[RankedCompletion]:
    """All completions as they are told; those that are told alike are one."""
    alike: dict[tuple[str, bool], CompletionMass] = {}
    for text, masses in found.masses.items():
        written = match_case(typing.prefix, text, corrected=masses.edits > 0) if typing.ignore_case else text
        before = alike.get((written, masses.is_complete))
        alike[written, masses.is_complete] = masses if before is None else before.merged_with(masses)
    offers = []
    for (text, is_complete), masses in alike.items():
        of_model, of_user = (1 - weight) * masses.of_model / live, weight * masses.of_user / live
        offers.append(
            RankedCompletion(
                text,
                _suffix(text, typing),
                min(1.0, of_model + of_user),
                masses.num_words,
                is_complete,
                masses.edits,
                of_user > of_model,
            )
        )
    return offers


def _suffix(text: str, typing: TypedInput) -> str | None:
    if not text.startswith(typing.prefix):
        return None
    return (" " if typing.space else "") + text[len(typing.prefix) :]


def _best_completions(
    offers: list[RankedCompletion], typing: TypedInput, telling: CompletionOptions
) -> tuple[RankedCompletion, ...]:
    """The most worthy; beginnings of words only where words leave room."""

    def worth(one: RankedCompletion) -> float:
        spared = len(one.text) - len(typing.prefix)
        return one.probability * max(spared, 0) if telling.by_savings else one.probability

    best: list[RankedCompletion] = []
    for complete in (True, False):
        of_kind = [one for one in offers if one.is_complete is complete]
        room = telling.limit - len(best)
        best += heapq.nsmallest(room, of_kind, key=lambda one: (-worth(one), one.text))
    return tuple(best)


def _is_blocked(text: str, blocklist: frozenset[str]) -> bool:
    """Whether a word, or words in a row, are on the list, with or without the punctuation about them; or a mark is."""
    folded = text.casefold()
    if not _CONTROL_TOKENS.isdisjoint(folded.split()):
        return True
    if not blocklist:
        return False
    bare = [word for sentence in sentence_words(folded) for word in sentence]
    return any(" ".join(run) in blocklist for words in (folded.split(), bare) for run in _word_runs(words))


def _word_runs(words: list[str]) -> Iterator[list[str]]:
    """All words that stand in a row."""
    for first in range(len(words)):
        for past in range(first + 1, len(words) + 1):
            yield words[first:past]
