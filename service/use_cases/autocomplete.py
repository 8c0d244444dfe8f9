"""Completions of the word being typed, by a model and by the words of its user.

P(W) = ((1-λ) · P_model(W) + λ · P_user(W)) / ((1-λ) · P_model(prefix) + λ · P_user(prefix)), where
each probability is joint with the typed text, and λ is 0 if no word of the user matches.

With spelling errors in the prefix, a word's mass is multiplied by the probability of the errors of
the first `CorrectedPrefix` that it starts with. Words take the case of the typed prefix unless
they have capitals of their own.
"""

import math
import re
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import itemgetter, mul
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from unicodedata import normalize

import numpy as np
from pydantic import Field, StringConstraints

from models.calls import Read, Work, map_in_steps
from models.completion.prefix import (
    EDIT_PENALTY,
    FIRST_LETTER_PENALTY,
    LETTERS_PER_EDIT,
    CorrectedPrefix,
    PrefixSplit,
    begun_members,
    corrected_prefixes,
    join_words,
    needs_space,
    split_prefix,
)
from models.completion.search import CompletionSearch, CompletionSettings, run_searches
from models.completion.token_trie import NO_TOKENS
from models.completion.user_model import (
    NextWordModels,
    UserModel,
    extend_phrases,
    next_word_models,
    phrase_probability,
    previous_word,
    sentence_words,
)
from models.errors import InvalidInputError
from models.language_model import SCORES
from models.phrases import PhraseAutomaton
from models.prefix_cache import NextTokenEntry
from models.scoring.constants import DICTIONARY_WORDS_PER_STEP
from models.scoring.model_weights import WeightedModel, shares, weights_after
from models.scoring.prefill import predict_next
from models.scoring.texts import Limits, check_reads_forward
from models.states import view
from models.text_model import TextModel
from models.vocabulary import CONTROL_TOKENS
from models.words import JOINERS, match_beginning, plain_form
from service.schemas import with_examples
from service.schemas.suggestions import AutocompleteReply, CompletionCandidate
from service.schemas.wire import TextOrObject, WireModel, text_or_object
from service.use_cases.accepted_words import UserName
from service.use_cases.inputs import ModelsRequest

MAX_LIST = 10_000
"""Maximum entries of a dictionary or a blocklist."""

_MAX_ENTRY_CHARACTERS = 200

EntryText = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_ENTRY_CHARACTERS, pattern=r"\S")]
"""A word, or several separated by spaces."""


class WeightedEntry(WireModel):
    """A weighted entry of a dictionary."""

    text: EntryText
    """A word, or several separated by spaces."""
    weight: float = Field(default=1.0, gt=0, le=1e9)
    """Equivalent count: how often the entry is assumed to have been typed."""


DictionaryEntry = Annotated[TextOrObject[EntryText, WeightedEntry], text_or_object("text and weight")]


class AutocompleteRequest(ModelsRequest):
    """Complete the word being typed, or predict the next one."""

    model_config = with_examples(
        {"text": "Return the len", "limit": 3},
        {
            "text": "If the obj",
            "limit": 5,
            "max_words": 2,
            "rank": "savings",
            "fuzzy": 1,
            "dictionary": ["objcopy", {"text": "objdump", "weight": 2}],
        },
        {"text": "Return the len", "models": [{"model": "ngram"}, {"model": "mixture", "weight": 2}]},
    )

    text: str
    """Text before the cursor; empty for the start of a sentence."""
    limit: int = Field(default=10, ge=1, le=100)
    """Maximum number of completions."""
    max_words: int = Field(default=1, ge=1, le=8)
    """Maximum words per completion; above 1, phrases are returned as well as words."""
    min_probability: float = Field(default=0.0, ge=0, le=1)
    """Minimum probability of the completions that are returned."""
    rank: Literal["probability", "savings"] = "probability"
    """Sort key: the probability, or the probability times the characters saved."""
    casing: Literal["exact", "ignore"] = "exact"
    """`ignore` matches the typed prefix in any case; models of lower-cased text always do."""
    fuzzy: int = Field(default=0, ge=0, le=2)
    """Maximum typing errors in the prefix to correct; also limited to one per two letters of the prefix."""
    dictionary: list[DictionaryEntry] = Field(default_factory=list, max_length=MAX_LIST)
    """Additional words and phrases to offer, known to the model or not."""
    blocklist: list[EntryText] = Field(default_factory=list, max_length=MAX_LIST)
    """Words and phrases that completions must not contain, in any case and Unicode form."""
    user: UserName | None = None
    """User whose accepted words are also offered; see `/v1/autocomplete/users/{user}/accepted`."""
    user_weight: float = Field(default=0.2, ge=0, le=1)
    """Weight of the user's words and the dictionary in the probabilities, if any of these words match."""
    session: UserName | None = None
    """Session id. A newer request of the same session cancels older ones, which get 409 `superseded`."""
    max_steps: int = Field(default=128, ge=1, le=4096)
    """Maximum model evaluations for the search; more leave less probability unexplored."""
    open_vocabulary: bool = False
    """Also offer words outside the training text, if tokens are pieces or characters."""

    @property
    def ignore_case(self) -> bool:
        """True if the prefix matches any case."""
        return self.casing == "ignore"


@dataclass(slots=True)
class RankedCompletion:
    """A completion, with its probability by the model and the user's words.

    Attributes:
        text: text from the start of the current word.
        num_words: number of words.
        edits: edits between its beginning and the typed prefix.
        is_complete: true if it ends at the end of a word.
        of_model: mass by the model; after ranking, its part of the probability given the typed text.
        of_user: mass by the user's words, likewise.
        begun: end of the text that a member of a class with earlier words begins with; empty for the current word.
    """

    text: str
    num_words: int
    edits: int
    is_complete: bool = True
    of_model: float = 0.0
    of_user: float = 0.0
    begun: str = ""

    @property
    def probability(self) -> float:
        """Probability given the typed text."""
        return min(1.0, self.of_model + self.of_user)


_PrefixSearch: TypeAlias = tuple[CorrectedPrefix, CompletionSearch]
"""A possibly intended prefix, and the search for words that begin with it."""


def _model_completions(
    searches: Sequence[_PrefixSearch], request: AutocompleteRequest
) -> Work[Any, tuple[dict[str, RankedCompletion], float, float]]:
    """Collect words of finished searches, each under the first prefix it begins with.

    Returns:
        Completions by text, the mass of the typed text, and the part of it that they do not cover.
    """
    completions: dict[str, RankedCompletion] = {}
    live_masses: list[float] = []  # mass of words under no earlier prefix
    found_masses: list[float] = []  # part covered by the words found
    prefixes = [prefix.text for prefix, _ in searches]
    for index, (prefix, search) in enumerate(searches):
        yield None
        nested = [i for i in range(index) if _starts_with(prefixes[i], prefixes[index], request)]
        result = search.result()
        own = [
            item
            for item in result.completions
            if not any(_starts_with(item.text, prefixes[i], request) for i in nested)
        ]
        complete_mass = sum(item.mass for item in own if item.is_complete and item.num_words == 1)
        found = result.live_mass * (1 - result.unexplored_mass)
        # two searches with common words may find different ones
        found_masses.append(max(complete_mass, found - sum(found_masses[i] for i in nested)))
        live_masses.append(max(found_masses[-1], result.live_mass - sum(live_masses[i] for i in nested)))
        for item in own:
            mass = prefix.penalty * item.mass
            completions[item.text] = RankedCompletion(
                item.text, item.num_words, prefix.edits, item.is_complete, mass
            )
    weights = [prefix.penalty for prefix, _ in searches]
    live = sum(map(mul, weights, live_masses))
    return completions, live, max(0.0, live - sum(map(mul, weights, found_masses)))


def _add_user_completions(
    completions: dict[str, RankedCompletion],
    mass_of: Callable[[str], float],
    request: AutocompleteRequest,
    typed: PrefixSplit,
    models: Sequence[UserModel],
    limit: int,
    previous: str,
) -> Work[Any, float]:
    """Add the user's words that match the prefix, and set the mass of all completions by `models`.

    At most `limit` are added for each number of words; `previous` is the word before them. Returns
    the mass of the typed text by the models.
    """
    words = next_word_models(models)
    next_words = words(previous)
    if not next_words:
        return 0.0
    yield None
    edits: dict[str, int] = {}
    if request.fuzzy:
        edits = yield from next_words.fuzzy_matches(
            typed.prefix, request.fuzzy, ignore_case=request.ignore_case
        )
        mass, likeliest = yield from next_words.rate(
            edits, limit, lambda word: _penalty(word, edits[word], typed)
        )
    else:
        mass, likeliest = yield from next_words.words_with_prefix(
            typed.prefix, plain_form(typed.prefix), ignore_case=request.ignore_case, limit=limit
        )
    longer = yield from extend_phrases(words, likeliest, request.max_words, limit)

    for number, (text, _) in enumerate((*likeliest, *longer), start=1):
        if not number % _LOOK_UPS_PER_STEP:
            yield None
        found = completions.get(text)
        if found is None or not found.is_complete:
            num_edits = edits.get(text.partition(" ")[0], 0)
            completions[text] = RankedCompletion(text, text.count(" ") + 1, num_edits, of_model=mass_of(text))
    for number, (text, completion) in enumerate(completions.items(), start=1):
        if not number % _COMPLETIONS_PER_STEP:
            yield None
        text_words = text.split()
        if completion.is_complete and text_words and (not request.fuzzy or text_words[0] in edits):
            penalty = _penalty(text_words[0], edits.get(text_words[0], 0), typed)
            completion.of_user = penalty * phrase_probability(words, previous, text_words)
    begun = yield from _begun_words(request, typed, words, limit)
    completions.update((completion.text, completion) for completion in begun)
    return mass + math.fsum(completion.of_user for completion in begun)


def _begun_words(
    request: AutocompleteRequest, typed: PrefixSplit, words: NextWordModels, limit: int
) -> Work[Any, list[RankedCompletion]]:
    """Find words that the text has begun elsewhere than the word at its end, such as "node.js" after "node.j".

    Their masses are relative to the probability of the text before its last word.
    """
    run = re.split(r"\s", request.text[-_MAX_ENTRY_CHARACTERS:])[-1]
    size = len(request.text) - typed.start
    starts = {0, *(sign.end() for sign in re.finditer(rf"[^\w{JOINERS}]", run))}
    ends = [run[start:] for start in sorted(starts - {len(run), len(run) - size})]
    if not ends:
        return []
    next_words = words(previous_word(request.text[: len(request.text) - len(run)]))
    find = partial(next_words.words_with_prefix, ignore_case=request.ignore_case, limit=limit)
    mass, _ = yield from find(*(end[: max(0, len(end) - size)] for end in ends))
    _, found = yield from find(*ends)
    return [
        RankedCompletion(word, 1, 0, of_user=probability / mass, begun=end)
        for word, probability in found
        for end in [next((end for end in ends if _starts_with(word, end, request)), ends[0])]
    ]


def _penalty(word: str, edits: int, typed: PrefixSplit) -> float:
    """Return the assumed probability of edits in a word's beginning, as for the model's words."""
    if not edits:
        return 1.0
    same_letter = word[:1].casefold() == typed.prefix[:1].casefold()
    return EDIT_PENALTY**edits * (1.0 if same_letter else FIRST_LETTER_PENALTY)


def _starts_with(text: str, prefix: str, request: AutocompleteRequest) -> bool:
    if request.ignore_case:
        return text.casefold().startswith(prefix.casefold())
    return text.startswith(prefix)


_CONTROL_TOKENS = frozenset(CONTROL_TOKENS)
"""Placeholders in corpora; a vocabulary may contain them as ordinary words, which are never offered."""

_MIN_LOG_PROBABILITY = -80.0
_MIN_PROBABILITY = 1e-12
"""Probability below which completions are never returned."""


def _in_typed_case(
    completions: Iterable[RankedCompletion], request: AutocompleteRequest, typed: PrefixSplit
) -> Work[Any, list[RankedCompletion]]:
    """Give all completions the typed case and beginning, and merge those of equal text."""
    merged: dict[tuple[str, bool, str], RankedCompletion] = {}
    for number, completion in enumerate(completions, start=1):
        if not number % _COMPLETIONS_PER_STEP:
            yield None
        given = completion.begun or typed.prefix
        plain = plain_form(given)
        if request.ignore_case:
            for beginning in dict.fromkeys((given, plain)):
                corrected = completion.edits > 0
                completion.text = match_beginning(beginning, completion.text, corrected=corrected)
        if completion.text.startswith(plain):
            completion.text = given + completion.text[len(plain) :]
        key = completion.text, completion.is_complete, completion.begun
        earlier = merged.setdefault(key, completion)
        if earlier is not completion:
            earlier.edits = min(earlier.edits, completion.edits)
            earlier.of_model += completion.of_model
            earlier.of_user += completion.of_user
    return list(merged.values())


def _best_completions(
    completions: list[RankedCompletion],
    request: AutocompleteRequest,
    typed: PrefixSplit,
    blocked: Collection[Sequence[str]],
    weight: float,
    live: float,
) -> Work[Any, list[RankedCompletion]]:
    """Divide masses by the typed text's, and select the best; complete words precede beginnings."""
    least = max(request.min_probability, _MIN_PROBABILITY)

    def rank(offer: RankedCompletion) -> tuple[bool, float, str]:
        saved = len(offer.text) - len(offer.begun or typed.prefix)
        worth = offer.probability * (max(saved, 0) if request.rank == "savings" else 1)
        return not offer.is_complete, -worth, offer.text

    best: list[RankedCompletion] = []
    phrases = PhraseAutomaton[str]()
    if blocked:
        yield from phrases.build(blocked, [1.0] * len(blocked))
    num_read = 0
    for offer in completions:
        if (num_read := num_read + len(offer.text)) > _CHARACTERS_PER_STEP:
            num_read = 0
            yield None
        offer.of_model = (1 - weight) * offer.of_model / live
        offer.of_user = weight * offer.of_user / live
        worse = len(best) == request.limit and rank(best[-1]) <= rank(offer)
        if offer.probability >= least and not worse and not _is_blocked(offer.text, phrases):
            insort(best, offer, key=rank)
            del best[request.limit :]
    return best


def _folded(text: str) -> str:
    return normalize("NFKC", text.casefold())


def _is_blocked(text: str, blocked: PhraseAutomaton[str]) -> bool:
    """Find blocked consecutive words, with or without punctuation, or a control token."""
    folded = _folded(text)
    if not _CONTROL_TOKENS.isdisjoint(folded.split()):
        return True
    if not blocked.num_bytes:
        return False
    bare = [word for sentence in sentence_words(folded) for word in sentence]
    return any(map(blocked.find, (folded.split(), bare)))


MAX_DICTIONARY_WORDS = 40_000
"""Maximum words of all dictionary entries together; entries may be phrases."""


_MAX_CORRECTIONS = 8
"""Maximum candidate prefixes for a mistyped one, the typed one included."""

_MAX_SPARE_COMPLETIONS = 256
"""Maximum extra completions to search for, because blocked ones are not returned."""

_LOOK_UPS_PER_STEP, _COMPLETIONS_PER_STEP, _CHARACTERS_PER_STEP = 32, 256, 2048
"""Completions that models look up, that are compared, and their characters read before other requests run."""

_ROWS_FOR_CORRECTIONS = 32
"""Rows that take as long as the search for mistyped prefixes."""

_COMPLETIONS_PER_ROW = 16
"""Completions that are looked up and ranked in the time of one row."""


def max_search_rows(models: Sequence[WeightedModel], request: AutocompleteRequest) -> int:
    """Return the most rows read besides the context, with other work as rows that take as long.

    None are read for single words of a word tokenizer without corrections.
    """
    found = request.limit * request.max_words * len(models) // _COMPLETIONS_PER_ROW
    fuzzy = _ROWS_FOR_CORRECTIONS if request.fuzzy else 0
    needs_search = [request.max_words > 1 or not loaded.token_trie.whole_words for loaded, _ in models]
    each = request.max_steps * (3 + request.max_words) // 4 + found
    return sum(needs_search) * each + fuzzy * len(models)


def cached_next_tokens(loaded: TextModel, request: AutocompleteRequest) -> NextTokenEntry | None:
    """Look up the state and distribution after the context.

    If cached, only search steps need the model.
    """
    return loaded.next_token_cache.find(split_prefix(loaded.tokenizer, request.text).context)


class _OfModel(NamedTuple):
    """Completions of one model.

    Attributes:
        weight: the model's weight after the text before the typed prefix.
        lead: text from the first beginning of the current word by any model to this model's.
        searches: finished searches.
        completions: completions by text.
        members: members of classes begun with earlier words.
        mass: mass of the typed prefix.
        unexplored: part of it that the completions do not cover.
        request: request with the model's case and corrections.
    """

    weight: float
    lead: str
    searches: Sequence[_PrefixSearch]
    completions: dict[str, RankedCompletion]
    members: Sequence[RankedCompletion]
    mass: float
    unexplored: float
    request: AutocompleteRequest

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
            for prefix, search in self.searches
            if _starts_with(own, prefix.text, self.request)
        )
        return self.weight * next(masses, 0.0)


def autocomplete(
    models: Sequence[WeightedModel],
    request: AutocompleteRequest,
    limits: Limits,
    *,
    user: UserModel | None = None,
    cached: NextTokenEntry | None = None,
) -> Work[Any, AutocompleteReply]:
    """Complete a text.

    Args:
        models: one or several.
        request: the request.
        limits: of one request.
        user: model of a named user's accepted words, if any.
        cached: state and distribution after the context, if any; only for one model.

    Raises:
        ContextLengthError: the text is too long.
        InvalidInputError: the dictionary has too many words.
        UnsupportedParameterError: a model reads backward.
    """
    limits.check_characters(request.text, parameter="text")
    words = yield from map_in_steps(request.blocklist, lambda one: tuple(_folded(one).split()), size=len)
    blocked = dict.fromkeys(filter(None, words))
    splits, entries = [], []
    for loaded, _ in models:
        check_reads_forward(loaded)
        split = split_prefix(loaded.tokenizer, request.text)
        entry = cached
        if entry is None:
            entry = yield from predict_next(loaded, split.context, limits, parameter="text")
        limits.check_length(entry.num_tokens, parameter="text")
        splits.append(split)
        entries.append(entry)
    weights = [1.0]
    if len(models) > 1:
        weights = (yield from weights_after(models, splits, entries, request.text)).tolist()
    typed = min(splits, key=lambda split: split.start)
    compose = models[0].loaded.tokenizer.normaliser.compose
    personal = yield from _personal_models(request, user, compose)
    limit = _search_limit(request, typed, blocked)
    parts = []
    for (loaded, _), split, entry, weight in zip(models, splits, entries, weights, strict=True):
        most = limit if split is typed else _search_limit(request, split, blocked)
        parts.append((yield from _complete(loaded, request, split, entry, limits, weight, typed.start, most)))
    found = yield from _merged(parts)
    request = parts[0].request  # a copy takes some 10 µs of each keystroke
    if len(parts) > 1:
        request = _adapted(request, typed, any_case=any(part.request.ignore_case for part in parts))

    def mass_of(text: str) -> float:
        return math.fsum(part.weighted_mass(text) for part in parts)

    members = [member for part in parts for member in part.members]
    of_model = math.fsum(part.weight * part.mass for part in parts)
    previous = previous_word(compose(request.text[: typed.start]))
    of_user = yield from _add_user_completions(found, mass_of, request, typed, personal, limit, previous)
    weight = request.user_weight if of_user else 0.0
    given_prefix = request.text[typed.start :]
    live = (1 - weight) * of_model + weight * of_user
    if of_model:
        weights = [part.weight * part.mass / of_model for part in parts]
    address = max(zip(weights, models, strict=True), key=itemgetter(0))[1].loaded.address
    best, unexplored = [], 0.0
    if live:
        completions = yield from _in_typed_case([*found.values(), *members], request, typed)
        best = yield from _best_completions(completions, request, typed, blocked, weight, live)
        unexplored = (1 - weight) * math.fsum(part.weight * part.unexplored for part in parts) / live
    # with a pattern, punctuation marks are words
    joins = any(getattr(loaded.tokenizer, "pattern", None) for loaded, _ in models)
    candidates = [
        CompletionCandidate(
            text,
            " " * (typed.space and not completion.begun and needs_space(request.text, text))
            + text[len(given) :]
            if text.startswith(given)
            else None,  # typed characters change
            len(request.text) - len(given),
            completion.probability,
            completion.num_words,
            completion.is_complete,
            completion.edits,
            "user" if completion.of_user > completion.of_model else "model",
        )
        for completion in best
        for given in [completion.begun or given_prefix]
        for text in [join_words(completion.text) if joins and completion.num_words > 1 else completion.text]
    ]
    return AutocompleteReply(
        address, given_prefix, typed.start, candidates, unexplored, shares(weights, models)
    )


def _adapted(request: AutocompleteRequest, typed: PrefixSplit, *, any_case: bool) -> AutocompleteRequest:
    """Return the request with a model's case, and no more corrections than the prefix allows."""
    fuzzy = min(request.fuzzy, len(typed.prefix) // LETTERS_PER_EDIT)
    return request.model_copy(update={"casing": "ignore" if any_case else "exact", "fuzzy": fuzzy})


def _complete(
    loaded: TextModel,
    request: AutocompleteRequest,
    typed: PrefixSplit,
    entry: NextTokenEntry,
    limits: Limits,
    weight: float,
    first: int,
    limit: int,
) -> Work[Any, _OfModel]:
    """Find completions of one model, at most `limit` of each length."""
    any_case = request.ignore_case or loaded.tokenizer.normaliser.changes_case
    request = _adapted(request, typed, any_case=any_case)
    splits, plain = [typed], plain_form(typed.prefix)
    if plain != typed.prefix:
        word = loaded.tokenizer.normalise_word(plain).encode("utf-8", "surrogatepass")
        splits.append(typed._replace(prefix=plain, spelled=b" " * (typed.spelled[:1] == b" ") + word))
    for split in splits:
        searches = yield from _searches(loaded, request, split, entry, limit)
        yield from run_searches(loaded.model, [search for _, search in searches])
        found, mass, unexplored = yield from _model_completions(searches, request)
        if not all(completion.edits for completion in found.values()):
            break
    members = yield from _begun_members(loaded, request, typed, limits)
    mass += math.fsum(member.of_model for member in members)
    lead = loaded.tokenizer.normaliser.compose(request.text[first : typed.start])
    lead += " " * (typed.space and first < typed.start)
    return _OfModel(weight, lead, searches, found, members, mass, unexplored, request)


def _merged(parts: Sequence[_OfModel]) -> Work[Any, dict[str, RankedCompletion]]:
    """Sum the completions' masses by all models, from the current word's first beginning on."""
    if len(parts) == 1:
        return parts[0].completions
    merged: dict[str, RankedCompletion] = {}
    for part in parts:
        yield None
        for member in part.members:
            member.of_model *= part.weight
        for completion in part.completions.values():
            completion.text = part.lead + completion.text
            earlier = merged.get(completion.text)
            if earlier is None or completion.is_complete > earlier.is_complete:
                merged[completion.text] = replace(completion)

    for number, (word, completion) in enumerate(merged.items()):
        if not number % _LOOK_UPS_PER_STEP:
            yield None
        masses = (part.weighted_mass(word, is_complete=completion.is_complete) for part in parts)
        completion.of_model = math.fsum(masses)
    return merged


def _begun_members(
    loaded: TextModel, request: AutocompleteRequest, typed: PrefixSplit, limits: Limits
) -> Work[Any, list[RankedCompletion]]:
    """Find members of classes begun with earlier words of the text.

    Their masses are relative to these words' probability, as those of words after them are.
    """
    if not loaded.token_trie.has_members:
        return []
    text, model = request.text, loaded.model
    read = loaded.tokenizer.normaliser(text)
    start, ids = typed.start, NO_TOKENS
    if len(read) == len(text):
        start, ids = begun_members(loaded.token_trie, read, typed.start, ignore_case=request.ignore_case)
    if not ids.size:
        return []
    context = text[:start].rstrip()
    entry = yield from predict_next(loaded, context, limits, parameter="text")
    after = (" " if context else "") + text[start : typed.start].rstrip()
    joint, num_context = loaded.tokenizer.encode_after(context, after)
    words = np.array([joint[num_context:]], dtype=np.int64)
    of_words = 0.0
    if words.size:
        scores = yield from Read(model, view(entry.state), words, np.array([words.shape[1]]), SCORES)
        of_words = max(float(scores.log_probs.sum()), _MIN_LOG_PROBABILITY)
    masses = np.exp(entry.log_probs[0, ids] - of_words)
    texts = [loaded.tokenizer.token_bytes[token].decode().removeprefix(" ") for token in ids.tolist()]
    begun = text[start:] if start < typed.start else ""
    found = zip(texts, masses.tolist(), strict=True)
    return (
        yield from map_in_steps(
            found, lambda one: RankedCompletion(one[0], 1, 0, of_model=one[1], begun=begun), size=lambda _: 0
        )
    )


def _searches(
    loaded: TextModel, request: AutocompleteRequest, typed: PrefixSplit, entry: NextTokenEntry, limit: int
) -> Work[Any, list[_PrefixSearch]]:
    """Create a search for the typed prefix, then for each corrected one, most probable edits first."""
    variants = _prefix_variants(loaded, request, typed, entry)
    # half of the steps for the typed prefix, the rest for corrected ones by weight
    spare, weights = request.max_steps // 2, sum(variant.weight for variant in variants) or 1.0
    shares = [request.max_steps - spare if variants else request.max_steps]
    shares += [max(1, round(spare * variant.weight / weights)) for variant in variants]
    searches: list[_PrefixSearch] = []
    for prefix, max_steps in zip(
        (CorrectedPrefix(typed.spelled, 0, 1.0, 0.0), *variants), shares, strict=True
    ):
        settings = CompletionSettings(
            limit=limit,
            max_words=request.max_words,
            max_steps=max_steps,
            ignore_case=request.ignore_case,
            open_vocabulary=request.open_vocabulary,
        )
        if searches:
            yield None
        search = CompletionSearch(loaded.token_trie, prefix.spelled, settings)
        search.update(view(entry.state), entry.log_probs)
        searches.append((prefix, search))
    return searches


def _prefix_variants(
    loaded: TextModel, request: AutocompleteRequest, typed: PrefixSplit, entry: NextTokenEntry
) -> list[CorrectedPrefix]:
    """Find corrected prefixes, most probable edits first; none starts with the typed or an earlier one."""
    if not request.fuzzy:
        return []
    found = corrected_prefixes(
        loaded.token_trie,
        typed.spelled,
        entry.log_probs[0],
        request.fuzzy,
        limit=_MAX_CORRECTIONS - 1,
        ignore_case=request.ignore_case,
    )
    variants: list[CorrectedPrefix] = []
    for variant in sorted(found, key=lambda variant: (-variant.penalty, len(variant.spelled))):
        if not variant.spelled.startswith((typed.spelled, *(earlier.spelled for earlier in variants))):
            variants.append(variant)
    return variants


def _search_limit(request: AutocompleteRequest, typed: PrefixSplit, blocked: Iterable[Sequence[str]]) -> int:
    """Return how many completions to search for: some may be blocked, some merge after recasing."""
    prefix = typed.prefix.casefold()
    num_blocked = sum(words[0].startswith(prefix) for words in blocked)
    return request.limit * (2 if request.ignore_case else 1) + 1 + min(num_blocked, _MAX_SPARE_COMPLETIONS)


def _personal_models(
    request: AutocompleteRequest, user: UserModel | None, compose: Callable[[str], str]
) -> Work[Any, list[UserModel]]:
    """Collect the user's model and the dictionary's, composed, with bigrams from its phrases."""
    models = [] if user is None else [user]
    if request.dictionary:
        words: defaultdict[str, float] = defaultdict(float)
        followers: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        num_words = num_read = 0
        for number, entry in enumerate(request.dictionary, start=1):
            text, weight = (entry, 1.0) if isinstance(entry, str) else (entry.text, entry.weight)
            entry_words = compose(text).split()
            num_words += len(entry_words)
            for word in entry_words:
                words[word] += weight
            for previous, word in pairwise(entry_words):
                followers[previous][word] += weight
            if num_words > MAX_DICTIONARY_WORDS:
                raise InvalidInputError(
                    f"dictionary has {num_words} words in its first {number} entries; at most "
                    f"{MAX_DICTIONARY_WORDS} are accepted in all entries",
                    parameter="dictionary",
                )
            if num_words - num_read > DICTIONARY_WORDS_PER_STEP:
                num_read = num_words
                yield None
        models.append(UserModel(words, followers))
    return models
