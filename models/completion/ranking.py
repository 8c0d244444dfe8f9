"""Ranked completions of the word being typed, by models and by the words of their user.

P(W) = ((1-λ) · P_model(W) + λ · P_user(W)) / ((1-λ) · P_model(prefix) + λ ·
P_user(prefix)), where each probability is joint with the typed text, and λ is 0 if
no word of the user matches.

With spelling errors in the prefix, a word's mass is multiplied by the probability
of the errors of the first `CorrectedPrefix` that it starts with, or of the spelling
if the user has corrected it before (see `corrected_words`). Words take the typed
prefix's case unless they have capitals of their own.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from operator import mul
from typing import Any, TypeAlias

import numpy as np

from models.calls import Read, Work, map_in_steps, view
from models.completion.blocking import NOT_BLOCKED, Blocked, blocked_by, is_blocked
from models.completion.corrections import (
    LETTERS_PER_EDIT,
    CorrectedPrefix,
    corrected_prefixes,
    letters_meant,
    share_of,
)
from models.completion.following import (
    NUM_WEIGHED,
    rescored_by_following,
)
from models.completion.history import CompletionHistory
from models.completion.prefix import PrefixSplit, split_prefix
from models.completion.ranked import (
    COMPLETIONS_PER_STEP,
    LOOK_UPS_PER_STEP,
    NO_EVIDENCE,
    RankedCompletion,
    Ranking,
    RankingSettings,
    TypingEvidence,
    starts_with,
)
from models.completion.search import Reading
from models.completion.searches import Search, next_words, run_searches, start_search
from models.completion.token_trie import as_one_word, fold_case
from models.completion.user_completions import add_user_completions, dictionary_models
from models.completion.user_model import (
    UserModel,
    previous_word,
)
from models.errors import InputError
from models.language_model import SCORES
from models.phrases import PhraseAutomaton
from models.prefix_cache import NextTokenEntry, context_key
from models.scoring.model_weights import WeightedModel, weights_after
from models.scoring.sequences import predict_next
from models.slots import MAX_MEMBER_WORDS
from models.text_model import Limits, TextModel, check_forward
from models.word_list import WordList
from models.words import match_beginning, plain_form

_MAX_CORRECTIONS, _MAX_MEANT = 8, 32
"""Maximum candidate prefixes for a mistyped one, with it; and those by keys, of a model of words."""

_MAX_SPARE_COMPLETIONS = 256
"""Maximum extra completions to search for, in place of blocked ones."""

_MAX_SPARE_MISSPELLINGS = 8
"""Maximum extra completions in place of misspellings, which are rare."""

_WORD_AFTER_SPACE = re.compile(r"(?<!\S)\S+")
_MIN_LOG_PROBABILITY = -80.0
_CHARS_PER_STEP = 2048
"""Characters read in a step."""

_MIN_PROBABILITY = 1e-12
"""Probability below which completions are never returned."""


_PrefixSearch: TypeAlias = tuple[CorrectedPrefix, Search]
"""A possibly intended prefix, and the search for words that begin with it."""


def _in_typed_case(
    found: Collection[RankedCompletion],
    members: Collection[RankedCompletion],
    settings: RankingSettings,
    typed: PrefixSplit,
) -> Work[Any, list[RankedCompletion]]:
    """Give completions and members the typed case and beginning, and merge those of equal text."""
    if not (settings.ignore_case or members or any(one.begun for one in found)) and typed.prefix.isascii():
        return list(found)
    merged: dict[tuple[str, bool, str], RankedCompletion] = {}
    for number, one in enumerate((*found, *members), start=1):
        if not number % COMPLETIONS_PER_STEP:
            yield None
        given = one.begun or typed.prefix
        plain = plain_form(given)
        if settings.ignore_case:
            for beginning in dict.fromkeys((given, plain)):
                one.text = match_beginning(beginning, one.text, corrected=one.edits > 0)
        if one.text.startswith(plain):
            one.text = given + one.text[len(plain) :]
        key = one.text, one.is_complete, one.begun
        earlier = merged.setdefault(key, one)
        if earlier is not one:
            earlier.edits = min(earlier.edits, one.edits)
            earlier.of_model += one.of_model
            earlier.of_user += one.of_user
    return list(merged.values())


def _best_completions(
    completions: list[RankedCompletion],
    settings: RankingSettings,
    typed: PrefixSplit,
    blocked: Blocked,
    weight: float,
    live: float,
) -> Work[Any, list[RankedCompletion]]:
    """Divide masses by the typed text's, and select the best; complete words precede beginnings."""
    least = max(settings.min_probability, _MIN_PROBABILITY)
    ranked: list[tuple[bool, float, str, int]] = []
    for number, offer in enumerate(completions):
        if number and not number % COMPLETIONS_PER_STEP:
            yield None
        offer.of_model = (1 - weight) * offer.of_model / live
        offer.of_user = weight * offer.of_user / live
        # properties are slower
        if (worth := min(1.0, offer.of_model + offer.of_user)) < least:
            continue
        if settings.rank == "savings":
            worth *= max(len(offer.text) - len(offer.begun or typed.prefix), 0)
        ranked.append((not offer.is_complete, -worth, offer.text, number))
    ranked.sort()
    phrases: PhraseAutomaton[str] | None = None
    if blocked.phrases:
        phrases = PhraseAutomaton()
        yield from phrases.build(blocked.phrases, [1.0] * len(blocked.phrases))
    best: list[RankedCompletion] = []
    num_read = 0
    for _, _, text, number in ranked:
        # a list looks each sequence of words up
        num_read += len(text) * (1 + 8 * len(blocked.lists))
        if num_read > _CHARS_PER_STEP:
            num_read = 0
            yield None
        if not (is_blocked(text, blocked, phrases) or (blocked and blocked.has_misspelling_in(text))):
            best.append(completions[number])
            if len(best) == settings.limit:
                break
    return best


class _OfModel:
    """Completions of one model.

    Args:
        model: the model, with its weight after the text before the typed prefix.
        text: text before the cursor.
        given: settings of the request.
        typed: the text as split for the model.
        entry: state and distribution after the context.
        evidence: what is known about the letters meant.

    Attributes:
        settings: settings with the model's case and corrections.
        lead: text from the first beginning of the current word by any model to this
            model's.
        completions: completions by text, once found.
        members: members of classes begun with earlier words.
        mass: mass of the typed prefix.
        unexplored: part of it that the completions do not cover.
    """

    def __init__(
        self,
        model: WeightedModel,
        text: str,
        given: RankingSettings,
        typed: PrefixSplit,
        entry: NextTokenEntry,
        evidence: TypingEvidence,
    ) -> None:
        self._loaded, self.weight = model
        self._key = context_key(typed.context, evidence.lines_read(self._loaded))
        self._keys = evidence.keys[max(len(evidence.keys) - len(typed.prefix), 0) :]
        self._gains = evidence.gains.get(self._loaded.address)
        self._text, self._typed = text, typed
        self._entry, self._given = entry, given
        any_case = given.ignore_case or self._loaded.tokenizer.normaliser.changes_case
        self.settings = _adapted(given, typed, any_case=any_case)
        self.lead, self.mass, self.unexplored = "", 0.0, 0.0
        self.completions: dict[str, RankedCompletion] = {}
        self.members: Sequence[RankedCompletion] = ()
        self._searches: list[_PrefixSearch] = []

    def find(self, first: int, blocked: Blocked, limits: Limits) -> Work[Any, int]:
        """Find completions; return how many of each length at most.

        Some are blocked, some merge after recasing. `first` is the first beginning
        by any model.
        """
        typed, given = self._typed, self._given
        tokenizer = self._loaded.tokenizer
        num_blocked = min(blocked.num_with_prefix(typed.prefix), _MAX_SPARE_COMPLETIONS) + len(blocked.shown)
        num_spare = num_blocked + _num_spare(self._loaded, typed)
        limit = given.limit * (2 if given.ignore_case else 1) + 1 + num_spare
        splits, plain = [typed], plain_form(typed.prefix)
        if plain != typed.prefix:
            word = tokenizer.normalise_word(plain).encode("utf-8", "surrogatepass")
            splits.append(typed._replace(prefix=plain, spelled=b" " * (typed.spelled[:1] == b" ") + word))
        for split in splits:
            self._searches = yield from self._create_searches(split, limit)
            searches = (search for _, search in self._searches)
            yield from run_searches(self._loaded, [*searches], self._key, self._entry)
            yield from self._collect_words()
            if self._keys or not all(one.edits for one in self.completions.values()):
                break
        self.members = yield from self._begun_members(limits)
        self.mass += math.fsum(member.of_model for member in self.members)
        self.lead = tokenizer.normaliser.compose(self._text[first : typed.start])
        self.lead += " " * (typed.space and first < typed.start)
        return limit

    def _collect_words(self) -> Work[Any, None]:
        """Collect words of finished searches, each under the first prefix it begins with."""
        self.completions = {}
        live_by: list[float] = []  # mass of words under no earlier prefix
        covered: list[float] = []  # part covered by the words found
        prefixes = [prefix.text for prefix, _ in self._searches[:-1]]
        misspellings = self._loaded.tokenizer.misspellings
        for index, (prefix, search) in enumerate(self._searches):
            if index:
                yield None
            nested = [i for i in range(index) if starts_with(prefixes[i], prefix.text, self.settings)]
            result, complete_mass = search.result(), 0.0
            for text, mass, num_words, is_complete in result.completions:
                if nested and any(starts_with(text, prefixes[i], self.settings) for i in nested):
                    continue
                if is_complete and num_words == 1:
                    complete_mass += mass
                if is_complete and misspellings.are_in(text):
                    continue
                self.completions[text] = RankedCompletion(
                    text, num_words, prefix.edits, is_complete, prefix.penalty * mass
                )
            found = result.live_mass * (1 - result.unexplored_mass)
            # two searches with common words may find different ones
            covered.append(max(complete_mass, found - sum(covered[i] for i in nested)))
            live_by.append(max(covered[-1], result.live_mass - sum(live_by[i] for i in nested)))
        weights = [prefix.penalty for prefix, _ in self._searches]
        self.mass = sum(map(mul, weights, live_by))
        self.unexplored = max(0.0, self.mass - sum(map(mul, weights, covered)))

    def weighted_mass(self, text: str, *, is_complete: bool = True) -> float:
        """Return the weighted mass of a word or its beginning; 0 if unknown or a phrase not found."""
        if not text.startswith(self.lead):
            return 0.0
        own = text.removeprefix(self.lead)
        found = self.completions.get(own)
        if found is not None and found.is_complete == is_complete:
            return self.weight * found.of_model
        masses = (
            prefix.penalty * search.mass_of(own)
            for prefix, search in self._searches
            if starts_with(own, prefix.text, self.settings)
        )
        return self.weight * next(masses, 0.0)

    def _begun_members(self, limits: Limits) -> Work[Any, list[RankedCompletion]]:
        """Find members of classes begun with complete words of the text: "New York" after "New Y".

        Also those begun with a sign, such as "O'Fallon" after "O'": as one word,
        they have another character in its place. Masses are relative to these
        words' probability, as those of words after them are.
        """
        loaded, text, typed = self._loaded, self._text, self._typed
        trie, any_case = loaded.token_trie, self.settings.ignore_case
        if not trie.has_members:
            return []
        read = loaded.tokenizer.normaliser(text)
        if len(read) != len(text):
            return []
        tokens = trie.folded if any_case else trie.exact
        words = _WORD_AFTER_SPACE.finditer(read)
        starts = [m.start() for m in words if m.start() < typed.start or as_one_word(m.group()) != m.group()]
        for start in starts[-MAX_MEMBER_WORDS:]:  # the longest part of the text that begins members
            spelled = f" {as_one_word(read[start:])}".encode()
            ids = tokens.with_prefix(fold_case(spelled) if any_case else spelled)
            if ids.size:
                break
        else:
            return []
        context = text[:start].rstrip()
        entry = yield from predict_next(loaded, context, limits, param="text")
        after = (" " if context else "") + text[start : typed.start].rstrip()
        joint, num_context = loaded.tokenizer.encode_after(context, after)
        before = np.array([joint[num_context:]], np.int64)
        of_words = 0.0
        if before.size:
            lengths = np.array([before.shape[1]])
            scores = yield from Read(loaded.model, view(entry.state), before, lengths, SCORES)
            of_words = max(float(scores.log_probs.sum()), _MIN_LOG_PROBABILITY)
        masses = np.exp(entry.log_probs[0, ids] - of_words)
        texts = [loaded.tokenizer.token_bytes[token].decode().removeprefix(" ") for token in ids.tolist()]
        begun = text[start:] if start < typed.start else ""
        found = zip(texts, masses.tolist(), strict=True)
        return (
            yield from map_in_steps(
                found,
                lambda one: RankedCompletion(one[0], 1, 0, of_model=one[1], begun=begun),
                size=lambda _: 0,
            )
        )

    def _create_searches(self, typed: PrefixSplit, limit: int) -> Work[Any, list[_PrefixSearch]]:
        """Create searches for the typed prefix and others that may be meant."""
        settings, loaded, first = self.settings, self._loaded, Reading.after(self._entry)
        start = partial(start_search, loaded, first)
        if not (settings.fuzzy or self._keys):
            limited = _limited(settings, limit, settings.max_steps)
            return [(CorrectedPrefix(typed.spelled, 0, 1.0, 0.0), start(typed.spelled, limited))]
        meant = letters_meant(typed.prefix, self._keys, ignore_case=settings.ignore_case)
        own = share_of(typed.prefix.casefold() if settings.ignore_case else typed.prefix, meant)
        typed_prefix = CorrectedPrefix(typed.spelled, 0, own, 0.0)
        whole_words = loaded.token_trie.whole_words and settings.max_words == 1
        corrected = corrected_prefixes(
            loaded.token_trie,
            typed.spelled,
            next_words(loaded, first) or first.next,
            settings.fuzzy,
            limit=(_MAX_MEANT if self._keys and whole_words else _MAX_CORRECTIONS) - 1,
            ignore_case=settings.ignore_case,
            keys=self._keys,
            gains=self._gains,
        )
        # none starts with an earlier one
        variants = [] if self._keys else [typed_prefix]
        for variant in sorted(corrected, key=lambda one: (-one.penalty, len(one.spelled))):
            if not variant.spelled.startswith(tuple(one.spelled for one in variants)):
                variants.append(variant)
        if self._keys and own and typed.spelled not in {one.spelled for one in variants}:
            variants.append(typed_prefix)
        # half of the steps for a typed prefix that begins words; half of the rest by weight
        lexicon = None if settings.open_vocabulary else loaded.token_trie.lexicon
        begins = lexicon is None or lexicon.has_beginning(typed.prefix)
        kept = int(begins and not self._keys)
        spare = settings.max_steps // (1 + kept) if len(variants) > kept else 0
        each = spare // (2 * max(len(variants), 1))
        weights = sum(one.weight for one in variants) or 1.0
        searches: list[_PrefixSearch] = []
        for number, prefix in enumerate(variants):
            if searches:
                yield None
            share = each + round((spare - each * len(variants)) * prefix.weight / weights)
            max_steps = max(1, settings.max_steps - spare if number < kept else share)
            searches.append((prefix, start(prefix.spelled, _limited(settings, limit, max_steps))))
        return searches


def rank_completions(
    models: Sequence[WeightedModel],
    text: str,
    settings: RankingSettings,
    limits: Limits,
    *,
    user: UserModel | None = None,
    dictionary: Sequence[tuple[str, float] | WordList] = (),
    blocklist: Sequence[str | WordList] = (),
    evidence: TypingEvidence = NO_EVIDENCE,
    cached: NextTokenEntry | None = None,
    shown: CompletionHistory | None = None,
) -> Work[Any, Ranking]:
    """Rank the completions of the word at the end of a text.

    Args:
        models: one or several.
        text: text before the cursor; empty for the start of a sentence.
        settings: limits and order.
        limits: of one request.
        user: model of the user's accepted words, if any.
        dictionary: further words and phrases to offer, with weights, and lists of
            them.
        blocklist: words and phrases that completions must not have, and lists of
            them.
        evidence: what else is known; keys are those of the characters of the typed
            prefix.
        cached: state and distribution after the context, if any; only for one
            model.
        shown: completions to leave out, which were shown earlier in the word;
            others take their places.

    Raises:
        ContextLengthError: the text is too long.
        InputError: the dictionary has too many words, or the keys are not as many
            as the typed characters.
        UnsupportedError: a model reads backward.
    """
    limits.check_characters(text, param="text")
    limits.check_characters(evidence.before, param="before")
    blocked = (yield from blocked_by(blocklist, models)) if blocklist else NOT_BLOCKED
    splits, entries = yield from _read_contexts(models, text, evidence, limits, cached)
    typed = min(splits, key=lambda one: one.start)
    if evidence.keys and len(evidence.keys) != len(typed.prefix):
        raise InputError.of(
            "keys",
            f"has {len(evidence.keys)} entries; the word being typed, {typed.prefix[:80]!r}, has "
            f"{len(typed.prefix)} characters",
        )
    if shown is not None:
        blocked = blocked._replace(shown=frozenset(shown.before(text, typed.start)))
    found = splits, entries
    if not evidence.after:
        return (
            yield from _rank_before(
                models, text, settings, limits, found, user, dictionary, blocked, evidence
            )
        )
    wide = replace(settings, limit=max(settings.limit, NUM_WEIGHED), min_probability=0.0)
    ranking = yield from _rank_before(models, text, wide, limits, found, user, dictionary, blocked, evidence)
    heaviest = ranking.weights.index(max(ranking.weights))
    best = yield from rescored_by_following(
        models[heaviest].loaded, splits[heaviest], entries[heaviest], ranking, text, evidence.after
    )
    best = [one for one in best if one.probability >= settings.min_probability]
    best.sort(key=lambda one: _sort_key(one, settings, typed))
    return ranking._replace(completions=best[: settings.limit])


def _sort_key(
    one: RankedCompletion, settings: RankingSettings, typed: PrefixSplit
) -> tuple[bool, float, str]:
    """Sort complete words first, by probability or savings, and by text."""
    worth = one.probability
    if settings.rank == "savings":
        worth *= max(len(one.text) - len(one.begun or typed.prefix), 0)
    return not one.is_complete, -worth, one.text


def _rank_before(
    models: Sequence[WeightedModel],
    text: str,
    settings: RankingSettings,
    limits: Limits,
    contexts: tuple[list[PrefixSplit], list[NextTokenEntry]],
    user: UserModel | None,
    dictionary: Sequence[tuple[str, float] | WordList],
    blocked: Blocked,
    evidence: TypingEvidence,
) -> Work[Any, Ranking]:
    """Rank completions by the text before the caret; see `rank_completions`."""
    splits, entries = contexts
    typed = min(splits, key=lambda one: one.start)
    loaded, has_own = models[0].loaded, user is not None or bool(dictionary)
    is_plain = not (has_own or evidence.keys or blocked.phrases or blocked.lists)
    if is_plain and _keeps_order(models, settings, typed):
        return (yield from _rank_found(loaded, settings, typed, entries[0], blocked, evidence))
    weights = [1.0]
    if len(models) > 1:
        weights = (yield from weights_after(models, splits, entries, text, evidence.before)).tolist()
    compose = models[0].loaded.tokenizer.normaliser.compose
    personal: list[UserModel | WordList] = [] if user is None else [user.offered]
    if dictionary:
        personal += yield from dictionary_models(dictionary, compose)
    parts, limit = [], 0
    for (loaded, _), split, entry, weight in zip(models, splits, entries, weights, strict=True):
        part = _OfModel(WeightedModel(loaded, weight), text, settings, split, entry, evidence)
        most = yield from part.find(typed.start, blocked, limits)
        limit = most if split is typed else limit
        parts.append(part)
    found = yield from _merged(parts)
    settings = _adapted(settings, typed, any_case=any(part.settings.ignore_case for part in parts))

    def mass_of(word: str) -> float:
        return math.fsum(part.weighted_mass(word) for part in parts)

    members = [one for part in parts for one in part.members]
    of_model = math.fsum(part.weight * part.mass for part in parts)
    of_user = 0.0
    if personal:
        previous = previous_word(compose(text[: typed.start]))
        of_user = yield from add_user_completions(
            found, mass_of, text, settings, typed, evidence.keys, personal, limit, previous
        )
    share = settings.user_weight if of_user else 0.0
    live = (1 - share) * of_model + share * of_user
    if of_model:
        weights = [part.weight * part.mass / of_model for part in parts]
    if not live:
        return Ranking(typed, [], 0.0, weights)
    completions = yield from _in_typed_case(found.values(), members, settings, typed)
    best = yield from _best_completions(completions, settings, typed, blocked, share, live)
    unexplored = (1 - share) * math.fsum(part.weight * part.unexplored for part in parts) / live
    return Ranking(typed, best, unexplored, weights)


def _keeps_order(models: Sequence[WeightedModel], settings: RankingSettings, typed: PrefixSplit) -> bool:
    """Return whether completions are ranked as a search finds them: by probability, of one model, as they are."""
    loaded = models[0].loaded
    return (
        len(models) == 1
        and settings.rank == "probability"
        and not (settings.ignore_case or loaded.tokenizer.normaliser.changes_case)
        and not (loaded.token_trie.has_members or _max_edits(settings, typed))
        and typed.prefix.isascii()
    )


def _rank_found(
    loaded: TextModel,
    settings: RankingSettings,
    typed: PrefixSplit,
    entry: NextTokenEntry,
    blocked: Blocked,
    evidence: TypingEvidence,
) -> Work[Any, Ranking]:
    """Return what a search finds; most keystrokes ask for no more."""
    misspellings, num_spare = loaded.tokenizer.misspellings, len(blocked.shown) + _num_spare(loaded, typed)
    limited = _limited(settings, settings.limit + 1 + num_spare, settings.max_steps)
    search = start_search(loaded, Reading.after(entry), typed.spelled, limited)
    yield from run_searches(loaded, [search], context_key(typed.context, evidence.lines_read(loaded)), entry)
    found, live, unexplored = search.result()
    complete_mass = math.fsum([one.mass for one in found if one.is_complete and one.num_words == 1])
    covered = max(complete_mass, live * (1 - unexplored))
    if not (live := max(live, covered)):
        return Ranking(typed, [], 0.0, [1.0])
    least = max(settings.min_probability, _MIN_PROBABILITY)
    best = [
        RankedCompletion(one.text, one.num_words, 0, one.is_complete, one.mass / live)
        for one in sorted(found, key=lambda one: (not one.is_complete, -one.mass, one.text))
        if one.mass / live >= least
        and not is_blocked(one.text, blocked, None)
        and not (one.is_complete and misspellings.are_in(one.text))
    ]
    return Ranking(typed, best[: settings.limit], max(0.0, live - covered) / live, [1.0])


def _num_spare(loaded: TextModel, typed: PrefixSplit) -> int:
    """Return how many completions to search for in place of the training text's misspellings."""
    found = loaded.tokenizer.misspellings.num_with_prefix(plain_form(typed.prefix))
    return min(found, _MAX_SPARE_MISSPELLINGS)


def _read_contexts(
    models: Sequence[WeightedModel],
    text: str,
    evidence: TypingEvidence,
    limits: Limits,
    cached: NextTokenEntry | None,
) -> Work[Any, tuple[list[PrefixSplit], list[NextTokenEntry]]]:
    """Split a text for each model, and read what stands before the typed prefix."""
    splits, entries = [], []
    for loaded, _ in models:
        check_forward(loaded)
        split = split_prefix(loaded.tokenizer, text)
        entry = cached
        texts = None if len(models) > 1 else loaded.ngram_texts
        if entry is None and texts is not None:
            entry = NextTokenEntry(*texts.read(split.context))
        if entry is None:
            before = evidence.lines_read(loaded)
            entry = yield from predict_next(loaded, split.context, limits, param="text", before=before)
        limits.check_length(entry.num_tokens, param="before" if evidence.before else "text")
        splits.append(split)
        entries.append(entry)
    return splits, entries


@lru_cache(maxsize=256)
def _limited(settings: RankingSettings, limit: int, max_steps: int) -> RankingSettings:
    return replace(settings, limit=limit, max_steps=max_steps)


def _max_edits(settings: RankingSettings, typed: PrefixSplit) -> int:
    return min(settings.fuzzy, len(typed.prefix) // LETTERS_PER_EDIT)


def _adapted(settings: RankingSettings, typed: PrefixSplit, *, any_case: bool) -> RankingSettings:
    """Return settings with a model's case, and as many corrections as the prefix allows."""
    fuzzy = _max_edits(settings, typed)
    if (any_case, fuzzy) == (settings.ignore_case, settings.fuzzy):
        return settings
    return replace(settings, ignore_case=any_case, fuzzy=fuzzy)


def _merged(parts: Sequence[_OfModel]) -> Work[Any, dict[str, RankedCompletion]]:
    """Sum completions' masses by all models, from the current word's first beginning on."""
    if len(parts) == 1:
        return parts[0].completions
    merged: dict[str, RankedCompletion] = {}
    for part in parts:
        yield None
        for member in part.members:
            member.of_model *= part.weight
        for one in part.completions.values():
            one.text = part.lead + one.text
            earlier = merged.get(one.text)
            if earlier is None or one.is_complete > earlier.is_complete:
                merged[one.text] = replace(one)

    for number, (word, one) in enumerate(merged.items()):
        if not number % LOOK_UPS_PER_STEP:
            yield None
        masses = (part.weighted_mass(word, is_complete=one.is_complete) for part in parts)
        one.of_model = math.fsum(masses)
    return merged
