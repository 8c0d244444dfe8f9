"""Autocomplete: completions of the word being typed, by a model and by the words of its user.

P(W) = ((1-λ) · P_model(W) + λ · P_user(W)) / ((1-λ) · P_model(prefix) + λ · P_user(prefix)), where
each probability is joint with the typed text, and λ is 0 where the user has no words.

Where spelling errors in the prefix are allowed, the mass of a word is multiplied by the probability
of the errors of the first `PrefixCorrection` that is a prefix of the word. Words take over the case
of the typed prefix unless they have capitals of their own.
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
from service.use_cases.constants import DICTIONARY_ENTRIES_PER_STEP
from service.use_cases.inputs import Limits, check_reads_forward
from service.use_cases.next_token import predict_next, run_completion_searches


class TypedInput(NamedTuple):
    """Typed text to complete.

    Attributes:
        prefix: the beginning of the current word, as typed.
        previous: the word before it.
        space: whether a completion starts with a space.
        ignore_case: whether the prefix matches any case.
        edits: maximum number of errors in the prefix.
        max_words: words of a phrase at most.
    """

    prefix: str
    previous: str
    space: bool
    ignore_case: bool
    edits: int
    max_words: int


class PrefixCorrection(NamedTuple):
    """A possibly intended prefix, and the search for its completions.

    Attributes:
        prefix: as the model spells it.
        edits: edits between it and the typed prefix.
        penalty: assumed probability of the edits; 1 without any.
        search: for words that begin with it.
    """

    prefix: str
    edits: int
    penalty: float
    search: CompletionSearch


@dataclass(slots=True)
class CompletionMass:
    """Probability mass of one completion.

    Attributes:
        num_words: words of the completion.
        edits: edits between its beginning and the typed prefix.
        is_complete: whether it ends with a word.
        of_model: mass by the model.
        of_user: mass by the user's words.
    """

    num_words: int
    edits: int
    is_complete: bool = True
    of_model: float = 0.0
    of_user: float = 0.0

    def merged_with(self, other: "CompletionMass") -> "CompletionMass":
        """Add the mass of a completion with the same text."""
        closer = min(self, other, key=lambda mass: mass.edits)
        of_model, of_user = self.of_model + other.of_model, self.of_user + other.of_user
        return replace(closer, of_model=of_model, of_user=of_user)


class ScoredCompletions(NamedTuple):
    """Masses of completions, and of the typed text.

    Attributes:
        masses: of each completion, by its text.
        of_model: probability of the typed text by the model.
        unexplored: part of it not covered by the words found.
        of_user: probability of the typed text by the user's words, all of which are found.
    """

    masses: dict[str, CompletionMass]
    of_model: float
    unexplored: float
    of_user: float


class _UserCompletions(NamedTuple):
    """The user's words that match the typed prefix, exactly or with edits.

    Attributes:
        mass: probability that one of them comes next.
        likeliest: the most probable words and phrases.
        edits: edits in the beginning of each word; empty where none are allowed.
    """

    mass: float
    likeliest: Sequence[str]
    edits: Mapping[str, int]


def score_completions(
    corrections: Sequence[PrefixCorrection], query: TypedInput, models: Sequence[UserModel], limit: int
) -> ScoredCompletions:
    """Collect the completions of finished searches and of the user's words.

    Args:
        corrections: the searches, the most probable edits first; no prefix starts with an earlier one.
        query: the typed text.
        models: the user's words and the dictionary.
        limit: completions of the user's words, per number of words.
    """
    found = _model_completions(corrections, query)
    words = NextWordModels(models)
    if not words.after(query.previous):
        return found
    user = _user_completions(words, query, limit)
    for text in user.likeliest:
        if text not in found.masses:
            edits = user.edits.get(text.partition(" ")[0], 0)
            found.masses[text] = CompletionMass(
                text.count(" ") + 1, edits, of_model=_model_mass(text, corrections, query)
            )
    for text, mass in found.masses.items():
        text_words = text.split()
        if mass.is_complete and text_words and (not query.edits or text_words[0] in user.edits):
            penalty = _penalty(text_words[0], user.edits.get(text_words[0], 0), query)
            mass.of_user = penalty * phrase_probability(words, query.previous, text_words)
    return found._replace(of_user=user.mass)


def _model_completions(corrections: Sequence[PrefixCorrection], query: TypedInput) -> ScoredCompletions:
    """Collect the words of the searches, each under the first correction whose prefix it begins with."""
    masses: dict[str, CompletionMass] = {}
    live_masses: list[float] = []  # mass of words under no earlier correction
    found_masses: list[float] = []  # part of it covered by the words found
    for index, correction in enumerate(corrections):
        nested = [i for i in range(index) if _starts_with(corrections[i].prefix, correction.prefix, query)]
        result = correction.search.result()
        completions = [
            item
            for item in result.completions
            if not any(_starts_with(item.text, corrections[i].prefix, query) for i in nested)
        ]
        complete_mass = sum(item.mass for item in completions if item.is_complete and item.num_words == 1)
        found = result.live_mass * (1 - result.unexplored_mass)
        # two searches with common words may have found different parts of them
        found_masses.append(max(complete_mass, found - sum(found_masses[i] for i in nested)))
        live_masses.append(max(found_masses[-1], result.live_mass - sum(live_masses[i] for i in nested)))
        for item in completions:
            mass = correction.penalty * item.mass
            masses[item.text] = CompletionMass(item.num_words, correction.edits, item.is_complete, mass)
    weights = [correction.penalty for correction in corrections]
    live = sum(map(mul, weights, live_masses))
    return ScoredCompletions(masses, live, max(0.0, live - sum(map(mul, weights, found_masses))), 0.0)


def _user_completions(words: NextWordModels, query: TypedInput, limit: int) -> _UserCompletions:
    """Find the user's words that match the prefix, and the most probable of them."""
    edits: dict[str, int] = {}
    next_words = words.after(query.previous)
    if query.edits:
        edits = next_words.fuzzy_matches(query.prefix, query.edits, ignore_case=query.ignore_case)
        rated = [
            ScoredPhrase(word, _penalty(word, n, query) * next_words.probability(word))
            for word, n in edits.items()
        ]
        mass = math.fsum(phrase.probability for phrase in rated)
        likeliest = most_probable(rated, limit)
    else:
        mass, likeliest = next_words.words_with_prefix(
            query.prefix, ignore_case=query.ignore_case, limit=limit
        )
    longer = extend_phrases(words, likeliest, query.max_words, limit)
    return _UserCompletions(mass, [phrase.text for phrase in [*likeliest, *longer]], edits)


def _penalty(word: str, edits: int, query: TypedInput) -> float:
    """Return the assumed probability of edits in the beginning of a word, as for the model's words."""
    if not edits:
        return 1.0
    same_letter = word[:1].casefold() == query.prefix[:1].casefold()
    return EDIT_PENALTY**edits * (1.0 if same_letter else FIRST_LETTER_PENALTY)


def _model_mass(word: str, corrections: Sequence[PrefixCorrection], query: TypedInput) -> float:
    """Compute the mass of a word by the model, whether or not its search found it; 0 for a phrase."""
    for correction in corrections:
        if _starts_with(word, correction.prefix, query):
            return correction.penalty * correction.search.mass_of(word)
    return 0.0


def _starts_with(text: str, prefix: str, query: TypedInput) -> bool:
    if query.ignore_case:
        return text.casefold().startswith(prefix.casefold())
    return text.startswith(prefix)


def match_case(typed: str, word: str, *, corrected: bool = False) -> str:
    """Adapt the case of a word to its typed beginning.

    A word with capitals of its own keeps them. Any other takes over typed capitals, and is all capitals if several
    letters were typed, all in capitals.

    Args:
        typed: its beginning as typed.
        word: as the model or the user's words have it.
        corrected: whether the beginning has errors; then only its first capital is taken over, or all if all are.
    """
    if word.startswith(typed) or word != word.lower():
        return word
    all_capitals = typed == typed.upper() and sum(map(str.isalpha, typed)) > 1
    if all_capitals and (corrected or len(word) == len(word.upper())):
        return word.upper()
    if corrected:
        return word[:1].upper() + word[1:] if typed[:1].isupper() else word
    recased = typed + word[len(typed) :]  # compared below, as "ß" and similar change length in capitals
    return recased if recased.casefold() == word.casefold() else word


_CONTROL_TOKENS = frozenset(CONTROL_TOKENS)
"""Placeholders in corpora; a vocabulary may hold them as ordinary words, which are never offered."""

_MIN_PROBABILITY = 1e-12
"""Probability below which completions are never returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions:
    """Selection and order of completions.

    Attributes:
        limit: completions at most.
        min_probability: of each.
        by_savings: whether to rank by probability times characters saved, else by probability.
        blocklist: casefolded words and phrases, one space between words.
        user_weight: λ.
    """

    limit: int
    min_probability: float
    by_savings: bool
    blocklist: frozenset[str]
    user_weight: float


class RankedCompletion(NamedTuple):
    """A completion as returned.

    Attributes:
        text: from the start of the current word.
        suffix: text to append; None if the typed text changes.
        probability: given the typed text.
        num_words: words of the completion.
        is_complete: whether it ends with a word.
        edits: corrected characters of the prefix.
        of_user: whether more of its probability comes from the user's words than from the model.
    """

    text: str
    suffix: str | None
    probability: float
    num_words: int
    is_complete: bool
    edits: int
    of_user: bool


class CompletionRanking(NamedTuple):
    """Completions, the best first, and the share of the probability not covered by complete words."""

    offers: tuple[RankedCompletion, ...]
    unexplored_mass: float


def rank_completions(
    found: ScoredCompletions, query: TypedInput, options: CompletionOptions
) -> CompletionRanking:
    """Select and rank the best completions."""
    weight = options.user_weight if found.of_user else 0.0
    live = (1 - weight) * found.of_model + weight * found.of_user
    if not live:
        return CompletionRanking((), 0.0)
    offers = [
        offer
        for offer in _mix(found, query, weight=weight, live=live)
        if offer.probability >= max(options.min_probability, _MIN_PROBABILITY)
        and not _is_blocked(offer.text, options.blocklist)
    ]
    return CompletionRanking(
        _best_completions(offers, query, options), (1 - weight) * found.unexplored / live
    )


def _mix(
    found: ScoredCompletions, query: TypedInput, *, weight: float, live: float
) -> list[RankedCompletion]:
    """Convert all completions, merging those with the same text after recasing."""
    mass_by_text: dict[tuple[str, bool], CompletionMass] = {}
    for text, mass in found.masses.items():
        recased = match_case(query.prefix, text, corrected=mass.edits > 0) if query.ignore_case else text
        earlier = mass_by_text.get((recased, mass.is_complete))
        mass_by_text[recased, mass.is_complete] = mass if earlier is None else earlier.merged_with(mass)
    offers = []
    for (text, is_complete), mass in mass_by_text.items():
        of_model, of_user = (1 - weight) * mass.of_model / live, weight * mass.of_user / live
        offers.append(
            RankedCompletion(
                text,
                _suffix(text, query),
                min(1.0, of_model + of_user),
                mass.num_words,
                is_complete,
                mass.edits,
                of_user > of_model,
            )
        )
    return offers


def _suffix(text: str, query: TypedInput) -> str | None:
    if not text.startswith(query.prefix):
        return None
    return (" " if query.space else "") + text[len(query.prefix) :]


def _best_completions(
    offers: list[RankedCompletion], query: TypedInput, options: CompletionOptions
) -> tuple[RankedCompletion, ...]:
    """Select the best; beginnings of words only if complete words do not reach the limit."""

    def worth(offer: RankedCompletion) -> float:
        saved = len(offer.text) - len(query.prefix)
        return offer.probability * max(saved, 0) if options.by_savings else offer.probability

    best: list[RankedCompletion] = []
    for complete in (True, False):
        of_kind = [offer for offer in offers if offer.is_complete is complete]
        left = options.limit - len(best)
        best += heapq.nsmallest(left, of_kind, key=lambda offer: (-worth(offer), offer.text))
    return tuple(best)


def _is_blocked(text: str, blocklist: frozenset[str]) -> bool:
    """Check whether a run of words, with or without punctuation, is blocked, or a control token occurs."""
    folded = text.casefold()
    if not _CONTROL_TOKENS.isdisjoint(folded.split()):
        return True
    if not blocklist:
        return False
    bare = [word for sentence in sentence_words(folded) for word in sentence]
    return any(" ".join(run) in blocklist for words in (folded.split(), bare) for run in _word_runs(words))


def _word_runs(words: list[str]) -> Iterator[list[str]]:
    """Yield all runs of consecutive words."""
    for first in range(len(words)):
        for end in range(first + 1, len(words) + 1):
            yield words[first:end]


MAX_DICTIONARY_WORDS = 40_000
"""Words over all entries of a dictionary at most; entries may be phrases."""


_MAX_CORRECTIONS = 8
"""Candidate prefixes for a mistyped one at most, the typed one included."""

_LETTERS_PER_EDIT = 2
"""Letters of a prefix per allowed edit, as in `corrected_prefixes`."""

_MAX_SPARE_COMPLETIONS = 256
"""Extra completions to search for at most, as blocked ones are not returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutocompleteCommand:
    """A valid request for completions.

    Attributes:
        text: before the caret.
        max_words: words of a phrase at most.
        ignore_case: whether the prefix matches any case.
        edits: maximum number of errors in the prefix.
        dictionary: words or phrases with their weights.
        max_steps: rows read by the model at most.
        options: selection and order of completions.
    """

    text: str
    max_words: int
    ignore_case: bool
    edits: int
    dictionary: tuple[tuple[str, float], ...]
    max_steps: int
    options: CompletionOptions


class AutocompleteResult(NamedTuple):
    """Completions of a text.

    Attributes:
        prefix: the beginning of the current word, as typed.
        start: its offset in the text, in code points.
        completions: the best first.
        unexplored_mass: share of the probability not covered by complete words.
    """

    prefix: str
    start: int
    completions: tuple[RankedCompletion, ...]
    unexplored_mass: float


def max_search_steps(loaded: LoadedModel, command: AutocompleteCommand) -> int:
    """Return the maximum number of rows read besides the context: none for single words of a word tokenizer."""
    needs_no_search = loaded.token_trie.whole_words and command.max_words == 1
    return 0 if needs_no_search else command.max_steps


def cached_next_tokens(loaded: LoadedModel, command: AutocompleteCommand) -> NextTokenEntry | None:
    """Look up the state and distribution after the context; if cached, only search steps need the model."""
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
        loaded: the model.
        command: the request.
        limits: of one request.
        user: model of the user's accepted words, if a user is named.
        cached: the state and distribution after the context, if cached.

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
    query = TypedInput(
        typed.prefix,
        previous_word(command.text[: typed.start]),
        typed.space,
        command.ignore_case or getattr(loaded.tokenizer, "lowercase", False),
        min(command.edits, len(typed.prefix) // _LETTERS_PER_EDIT),
        command.max_words,
    )
    personal = yield from _personal_models(command, user)
    corrections = _corrections(loaded, command, typed, query, cached)
    yield from run_completion_searches(loaded, [correction.search for correction in corrections])
    found = score_completions(corrections, query, personal, _search_limit(command, typed))
    offers, unexplored_mass = rank_completions(found, query, command.options)
    return AutocompleteResult(typed.prefix, typed.start, offers, unexplored_mass)


def _corrections(
    loaded: LoadedModel,
    command: AutocompleteCommand,
    typed: PrefixSplit,
    query: TypedInput,
    entry: NextTokenEntry,
) -> list[PrefixCorrection]:
    """Create a search for the typed prefix, then one for each corrected prefix, the most probable edits first."""
    variants = _prefix_variants(loaded, typed, query, entry)
    # half of the steps are for the typed prefix, the rest for the corrected prefixes in proportion to their weights
    spare, weights = command.max_steps // 2, sum(variant.weight for variant in variants) or 1.0
    shares = [command.max_steps - spare if variants else command.max_steps]
    shares += [max(1, round(spare * variant.weight / weights)) for variant in variants]
    corrections = []
    for item, max_steps in zip((CorrectedPrefix(typed.spelled, 0, 1.0, 0.0), *variants), shares, strict=True):
        settings = CompletionSettings(
            limit=_search_limit(command, typed),
            max_words=command.max_words,
            max_steps=max_steps,
            ignore_case=query.ignore_case,
        )
        search = CompletionSearch(loaded.token_trie, item.spelled, settings)
        search.update(view(entry.state), entry.log_probs)
        prefix = item.spelled.decode(errors="replace").removeprefix(" ")
        corrections.append(PrefixCorrection(prefix, item.edits, item.penalty, search))
    return corrections


def _prefix_variants(
    loaded: LoadedModel, typed: PrefixSplit, query: TypedInput, entry: NextTokenEntry
) -> list[CorrectedPrefix]:
    """Find corrected prefixes, the most probable edits first; none starts with the typed or an earlier one."""
    if not query.edits:
        return []
    found = corrected_prefixes(
        loaded.token_trie,
        typed.spelled,
        entry.log_probs[0],
        query.edits,
        limit=_MAX_CORRECTIONS - 1,
        ignore_case=query.ignore_case,
    )
    variants: list[CorrectedPrefix] = []
    for variant in sorted(found, key=lambda variant: (-variant.penalty, len(variant.spelled))):
        if not variant.spelled.startswith((typed.spelled, *(earlier.spelled for earlier in variants))):
            variants.append(variant)
    return variants


def _search_limit(command: AutocompleteCommand, typed: PrefixSplit) -> int:
    """Return the number of completions to search for: some may be blocked, and some merge after recasing."""
    prefix = typed.prefix.casefold()
    blocked = sum(entry.startswith(prefix) for entry in command.options.blocklist)
    return (
        command.options.limit * (2 if command.ignore_case else 1) + 1 + min(blocked, _MAX_SPARE_COMPLETIONS)
    )


def _personal_models(command: AutocompleteCommand, user: UserModel | None) -> Work[Any, list[UserModel]]:
    """Collect the user's model and one of the dictionary, with bigrams from its phrases."""
    models = [] if user is None else [user]
    if command.dictionary:
        words: dict[str, float] = {}
        pairs: dict[tuple[str, str], float] = {}
        num_words = 0
        for number, (entry, weight) in enumerate(command.dictionary, start=1):
            entry_words = entry.split()
            num_words += len(entry_words)
            for word in entry_words:
                words[word] = words.get(word, 0.0) + weight
            for pair in pairwise(entry_words):
                pairs[pair] = pairs.get(pair, 0.0) + weight
            if num_words > MAX_DICTIONARY_WORDS:
                raise InvalidInputError(
                    f"dictionary has {num_words} words in its first {number} entries; all may have "
                    f"{MAX_DICTIONARY_WORDS} together",
                    parameter="dictionary",
                )
            if not number % DICTIONARY_ENTRIES_PER_STEP:
                yield None
        models.append(
            user_model_from_counts(words.items(), ((*pair, weight) for pair, weight in pairs.items()))
        )
    return models
