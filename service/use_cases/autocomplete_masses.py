"""How probable each completion is, by the model and by the user's words, jointly with what was typed.

Where mistakes in the prefix are looked past, the masses of a word that was mistyped are multiplied by how probable
such mistakes are taken to be: those of the first meaning of the prefix that it begins with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import NamedTuple

from models.completion.near import EDIT_PENALTY, FIRST_LETTER_PENALTY
from models.completion.personal import UserModel
from models.completion.personal_words import (
    NextWordModels,
    ScoredPhrase,
    extend_phrases,
    most_probable,
    phrase_probability,
)
from models.completion.search import CompletionSearch


class TypedInput(NamedTuple):
    """What is being typed.

    Attributes:
        prefix: the beginning of the current word, as typed.
        previous: the word before it.
        space: whether a completion brings a space.
        ignore_case: whether the prefix stands for any case.
        edits: mistakes in it that are looked past.
        max_words: of a phrase.
    """

    prefix: str
    previous: str
    space: bool
    ignore_case: bool
    edits: int
    max_words: int


class PrefixCorrection(NamedTuple):
    """A prefix that may have been meant, and the search for what it goes on as.

    Attributes:
        prefix: as the model spells it.
        edits: mistakes by which it became what was typed.
        penalty: how probable they are taken to be; 1 where there are none.
        search: for words that begin with it.
    """

    prefix: str
    edits: int
    penalty: float
    search: CompletionSearch


@dataclass(slots=True)
class CompletionMass:
    """Of one completion.

    Attributes:
        num_words: in it.
        edits: mistakes in what was typed of it.
        is_complete: whether it ends with a word.
        of_model: by the model.
        of_user: by the user's words.
    """

    num_words: int
    edits: int
    is_complete: bool = True
    of_model: float = 0.0
    of_user: float = 0.0

    def merged_with(self, other: "CompletionMass") -> "CompletionMass":
        """Of two completions that are told alike."""
        likelier = min(self, other, key=lambda one: one.edits)
        of_model, of_user = self.of_model + other.of_model, self.of_user + other.of_user
        return replace(likelier, of_model=of_model, of_user=of_user)


class ScoredCompletions(NamedTuple):
    """Completions, and what all there are come to.

    Attributes:
        masses: of each completion, by its text.
        of_model: how probable what was typed is, by the model.
        unexplored: that part of it for which no word was found.
        of_user: the same by the user's words, of which all are found.
    """

    masses: dict[str, CompletionMass]
    of_model: float
    unexplored: float
    of_user: float


class _UserCompletions(NamedTuple):
    """The user's words that begin as was typed, or nearly so.

    Attributes:
        mass: that one of them comes next.
        likeliest: of them, and phrases.
        edits: mistakes in the beginning of each word; where none are looked past, of none.
    """

    mass: float
    likeliest: Sequence[str]
    edits: Mapping[str, int]


def score_completions(
    meanings: Sequence[PrefixCorrection], typing: TypedInput, models: Sequence[UserModel], limit: int
) -> ScoredCompletions:
    """What searches that are over have found, and the user's words, so many of each number of words.

    Args:
        meanings: the searches, the least penalty first; none begins with one before it.
        typing: what they are for.
        models: the user's words and the dictionary.
        limit: of the user's words.
    """
    found = _model_completions(meanings, typing)
    words = NextWordModels(models)
    if not words.after(typing.previous):
        return found
    user = _user_completions(words, typing, limit)
    for text in user.likeliest:
        if text not in found.masses:
            edits = user.edits.get(text.partition(" ")[0], 0)
            found.masses[text] = CompletionMass(
                text.count(" ") + 1, edits, of_model=_model_mass(text, meanings, typing)
            )
    for text, masses in found.masses.items():
        several = text.split()
        if masses.is_complete and several and (not typing.edits or several[0] in user.edits):
            penalty = _penalty(several[0], user.edits.get(several[0], 0), typing)
            masses.of_user = penalty * phrase_probability(words, typing.previous, several)
    return found._replace(of_user=user.mass)


def _model_completions(meanings: Sequence[PrefixCorrection], typing: TypedInput) -> ScoredCompletions:
    """What the searches have found: each word by the first of the meanings that it begins with."""
    masses: dict[str, CompletionMass] = {}
    alive: list[float] = []  # of words of no meaning before
    ended: list[float] = []  # of those that were found
    for place, meaning in enumerate(meanings):
        within = [i for i in range(place) if _starts_with(meanings[i].prefix, meaning.prefix, typing)]
        result = meaning.search.result()
        own = [
            one
            for one in result.completions
            if not any(_starts_with(one.text, meanings[i].prefix, typing) for i in within)
        ]
        told = sum(one.mass for one in own if one.is_complete and one.num_words == 1)
        found = result.live_mass * (1 - result.unexplored_mass)
        # one search may have found more of the words that both look for than the other has
        ended.append(max(told, found - sum(ended[i] for i in within)))
        alive.append(max(ended[-1], result.live_mass - sum(alive[i] for i in within)))
        for one in own:
            mass = meaning.penalty * one.mass
            masses[one.text] = CompletionMass(one.num_words, meaning.edits, one.is_complete, mass)
    weights = [meaning.penalty for meaning in meanings]
    live = sum(map(mul, weights, alive))
    return ScoredCompletions(masses, live, max(0.0, live - sum(map(mul, weights, ended))), 0.0)


def _user_completions(words: NextWordModels, typing: TypedInput, limit: int) -> _UserCompletions:
    """The user's words that begin so, and the likeliest of them."""
    edits: dict[str, int] = {}
    next_words = words.after(typing.previous)
    if typing.edits:
        edits = next_words.fuzzy_matches(typing.prefix, typing.edits, ignore_case=typing.ignore_case)
        rated = [
            ScoredPhrase(word, _penalty(word, n, typing) * next_words.probability(word))
            for word, n in edits.items()
        ]
        mass = math.fsum(one.probability for one in rated)
        likeliest = most_probable(rated, limit)
    else:
        mass, likeliest = next_words.words_with_prefix(
            typing.prefix, ignore_case=typing.ignore_case, limit=limit
        )
    longer = extend_phrases(words, likeliest, typing.max_words, limit)
    return _UserCompletions(mass, [one.text for one in [*likeliest, *longer]], edits)


def _penalty(word: str, edits: int, typing: TypedInput) -> float:
    """How probable so many mistakes in the beginning of a word are taken to be; as for the model's words."""
    if not edits:
        return 1.0
    same_letter = word[:1].casefold() == typing.prefix[:1].casefold()
    return EDIT_PENALTY**edits * (1.0 if same_letter else FIRST_LETTER_PENALTY)


def _model_mass(word: str, meanings: Sequence[PrefixCorrection], typing: TypedInput) -> float:
    """How probable the model says a word is, whether its search told it or not; 0 of a phrase."""
    for meaning in meanings:
        if _starts_with(word, meaning.prefix, typing):
            return meaning.penalty * meaning.search.mass_of(word)
    return 0.0


def _starts_with(text: str, prefix: str, typing: TypedInput) -> bool:
    if typing.ignore_case:
        return text.casefold().startswith(prefix.casefold())
    return text.startswith(prefix)
