"""Autocomplete: completions of the word being typed, by a model and by the words of its user.

P(W) = ((1-λ) · P_model(W) + λ · P_user(W)) / ((1-λ) · P_model(prefix) + λ · P_user(prefix)), where
each probability is joint with the typed text, and λ is 0 where the user has no words.

Where spelling errors in the prefix are allowed, the mass of a word is multiplied by the probability
of such errors: those of the first `PrefixCorrection` that is a prefix of the word. Words take over
the case of the typed prefix unless they have capitals of their own.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import mul
from typing import Any, NamedTuple

from models.completion.prefix import (
    EDIT_PENALTY,
    FIRST_LETTER_PENALTY,
    CorrectedPrefix,
    PrefixSplit,
    corrected_prefixes,
    split_prefix,
)
from models.completion.search import CompletionSearch, CompletionSettings
from models.completion.user_model import (
    NextWordModels,
    ScoredPhrase,
    UserModel,
    extend_phrases,
    most_probable,
    phrase_probability,
    previous_word,
    sentence_words,
    user_model_from_counts,
)
from models.errors import InvalidInputError
from models.vocabulary import CONTROL_TOKENS
from service.engine.batching import view
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.engine.prefix_cache import NextTokenEntry
from service.use_cases.inputs import Limits, check_reads_forward
from service.use_cases.next_token import predict_next, run_completion_searches


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


def match_case(typed: str, word: str, *, corrected: bool = False) -> str:
    """A word as it is told to somebody who has typed its beginning, whatever the case of that.

    A word that has capitals of its own keeps them. One without takes over those that were typed, and is all capitals
    where all of several letters are.

    Args:
        typed: its beginning.
        word: as the model or the user's words have it.
        corrected: whether the beginning holds mistakes; a capital is taken over as the word's first letter only.
    """
    if word.startswith(typed) or word != word.lower():
        return word
    shouted = typed == typed.upper() and sum(map(str.isalpha, typed)) > 1
    if shouted and (corrected or len(word) == len(word.upper())):
        return word.upper()
    if corrected:
        return word[:1].upper() + word[1:] if typed[:1].isupper() else word
    told = typed + word[len(typed) :]  # "ß" and its like have other lengths in capitals, so look again
    return told if told.casefold() == word.casefold() else word


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


MAX_DICTIONARY_WORDS = 40_000
"""In all entries of a dictionary together, as entries may be phrases."""

_ENTRIES_PER_STEP = 2048
"""Of a dictionary, read before other requests have their turn."""

_MAX_CORRECTIONS = 8
"""Prefixes that may have been meant where one was mistyped, at most."""

_LETTERS_PER_EDIT = 2
"""In a prefix: a mistake is looked past for every two letters, by `corrected_prefixes` and here."""

_MAX_SPARE_COMPLETIONS = 256
"""Completions that are searched for beyond those that are to be told, at most, as some may not be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutocompleteCommand:
    """A valid request for completions.

    Attributes:
        text: before the caret.
        max_words: of a phrase.
        ignore_case: whether the prefix stands for any case.
        edits: mistakes in the prefix that are looked past.
        dictionary: words, or phrases, and how much each counts.
        max_steps: rows that the model may be asked for.
        options: what is told of what is found.
    """

    text: str
    max_words: int
    ignore_case: bool
    edits: int
    dictionary: tuple[tuple[str, float], ...]
    max_steps: int
    options: CompletionOptions


class AutocompleteResult(NamedTuple):
    """What a text may go on as.

    Attributes:
        prefix: the beginning of the current word, as typed.
        start: where that begins, in code points of the text.
        completions: the best first.
        unexplored_mass: the part of the probability that was not followed to the end of a word.
    """

    prefix: str
    start: int
    completions: tuple[RankedCompletion, ...]
    unexplored_mass: float


def max_search_steps(loaded: LoadedModel, command: AutocompleteCommand) -> int:
    """Rows that the model may be asked for beside the one after the context: none where tokens are words."""
    one_look = loaded.token_trie.whole_words and command.max_words == 1
    return 0 if one_look else command.max_steps


def cached_next_tokens(loaded: LoadedModel, command: AutocompleteCommand) -> NextTokenEntry | None:
    """What may come after the context, if that was asked before: then the model is asked for steps alone."""
    return (
        None
        if loaded.next_token_cache is None
        else loaded.next_token_cache.find(split_prefix(loaded.tokenizer, command.text).context)
    )


def autocomplete(
    loaded: LoadedModel,
    command: AutocompleteCommand,
    limits: Limits,
    *,
    user: UserModel | None = None,
    cached: NextTokenEntry | None = None,
) -> Work[Any, AutocompleteResult]:
    """Complete a text; a use case.

    Args:
        loaded: by what model.
        command: how.
        limits: of one request.
        user: what the user has accepted, if one was named.
        cached: what may come after the context, if that is known.

    Raises:
        ContextLengthError: the text is too long.
        InvalidInputError: the dictionary has too many words.
        UnsupportedParameterError: the model reads from right to left.
    """
    check_reads_forward(loaded)
    limits.check_characters(command.text, parameter="text")
    typed = split_prefix(loaded.tokenizer, command.text)
    if cached is None:
        cached = yield from predict_next(loaded, typed.context, limits, parameter="text")
    limits.check_length(cached.num_tokens, parameter="text")
    typing = TypedInput(
        typed.prefix,
        previous_word(command.text[: typed.start]),
        typed.space,
        command.ignore_case or getattr(loaded.tokenizer, "lowercase", False),
        min(command.edits, len(typed.prefix) // _LETTERS_PER_EDIT),
        command.max_words,
    )
    personal = yield from _personal_models(command, user)
    meanings = _corrections(loaded, command, typed, typing, cached)
    yield from run_completion_searches(loaded, [meaning.search for meaning in meanings])
    found = score_completions(meanings, typing, personal, _search_limit(command, typed))
    offers, unexplored_mass = rank_completions(found, typing, command.options)
    return AutocompleteResult(typed.prefix, typed.start, offers, unexplored_mass)


def _corrections(
    loaded: LoadedModel,
    command: AutocompleteCommand,
    typed: PrefixSplit,
    typing: TypedInput,
    look: NextTokenEntry,
) -> list[PrefixCorrection]:
    """Searches for what the prefix goes on as, and for those that may have been meant, the least penalty first."""
    near = _near_prefixes(loaded, typed, typing, look)
    # half of the steps are for what was typed, the others for what may have been meant, by how likely it is
    spare, weights = command.max_steps // 2, sum(one.weight for one in near) or 1.0
    shares = [command.max_steps - spare if near else command.max_steps]
    shares += [max(1, round(spare * one.weight / weights)) for one in near]
    meanings = []
    for one, max_steps in zip((CorrectedPrefix(typed.spelled, 0, 1.0, 0.0), *near), shares, strict=True):
        settings = CompletionSettings(
            limit=_search_limit(command, typed),
            max_words=command.max_words,
            max_steps=max_steps,
            ignore_case=typing.ignore_case,
        )
        search = CompletionSearch(loaded.token_trie, one.spelled, settings)
        search.update(view(look.state), look.log_probs)
        prefix = one.spelled.decode(errors="replace").removeprefix(" ")
        meanings.append(PrefixCorrection(prefix, one.edits, one.penalty, search))
    return meanings


def _near_prefixes(
    loaded: LoadedModel, typed: PrefixSplit, typing: TypedInput, look: NextTokenEntry
) -> list[CorrectedPrefix]:
    """Prefixes that may have been meant, the least penalty first; none begins with one before it, or as was typed."""
    if not typing.edits:
        return []
    found = corrected_prefixes(
        loaded.token_trie,
        typed.spelled,
        look.log_probs[0],
        typing.edits,
        limit=_MAX_CORRECTIONS - 1,
        ignore_case=typing.ignore_case,
    )
    near: list[CorrectedPrefix] = []
    for one in sorted(found, key=lambda one: (-one.penalty, len(one.spelled))):
        if not one.spelled.startswith((typed.spelled, *(before.spelled for before in near))):
            near.append(one)
    return near


def _search_limit(command: AutocompleteCommand, typed: PrefixSplit) -> int:
    """Completions to search for: some may not be told, and some may be told alike."""
    prefix = typed.prefix.casefold()
    blocked = sum(entry.startswith(prefix) for entry in command.options.blocklist)
    return (
        command.options.limit * (2 if command.ignore_case else 1) + 1 + min(blocked, _MAX_SPARE_COMPLETIONS)
    )


def _personal_models(command: AutocompleteCommand, user: UserModel | None) -> Work[Any, list[UserModel]]:
    """The user's words and the dictionary, in which the words of a phrase are neighbours."""
    models = [] if user is None else [user]
    if command.dictionary:
        words: dict[str, float] = {}
        pairs: dict[tuple[str, str], float] = {}
        num_words = 0
        for place, (entry, weight) in enumerate(command.dictionary, start=1):
            several = entry.split()
            num_words += len(several)
            for word in several:
                words[word] = words.get(word, 0.0) + weight
            for pair in pairwise(several):
                pairs[pair] = pairs.get(pair, 0.0) + weight
            if num_words > MAX_DICTIONARY_WORDS:
                raise InvalidInputError(
                    f"dictionary has {num_words} words in its first {place} entries; all may have "
                    f"{MAX_DICTIONARY_WORDS} together",
                    parameter="dictionary",
                )
            if not place % _ENTRIES_PER_STEP:
                yield None
        models.append(
            user_model_from_counts(words.items(), ((*pair, weight) for pair, weight in pairs.items()))
        )
    return models
