"""Completions of the word being typed, by models and their user's words: POST /v1/autocomplete.

Users' words come from accepted completions, texts to learn from and imported exports.
"""

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field, StringConstraints, Tag
from typing_extensions import override

from models.calls import Work
from models.completion.corrections import MAX_EDITS, KeyLetters, SortedLetters
from models.completion.following import NUM_WEIGHED
from models.completion.history import CompletionHistory
from models.completion.keys import letters_of_touch
from models.completion.prefix import join_words, needs_space, split_prefix
from models.completion.ranked import NO_EVIDENCE, RankingSettings, TypingEvidence
from models.completion.ranking import rank_completions
from models.completion.user_model import UserModel, UserModelLimits, user_model_from_counts
from models.errors import DomainError, InputError, UserStoreError
from models.language_model import is_lookup
from models.prefix_cache import NextTokenEntry, context_key
from models.scoring.model_weights import WeightedModel, shares
from models.text_model import Limits
from models.word_list import WordList
from service.hosting.loaded_model import LoadedModel
from service.operations.operation import Call, Cost, ModelsOperation, ModelsRequest
from service.schemas import with_examples
from service.schemas.suggestions import AutocompleteReply, CompletionCandidate
from service.schemas.wire import WireModel, by_type, shared_names
from service.schemas.word_lists import BlockedEntry, DictionaryEntry, WeightedEntry

NAME_PATTERN = r"^[A-Za-z0-9_@:+=-][A-Za-z0-9._@:+=-]{0,127}$"
NAME_RULE = "1 to 128 letters, digits or . _ @ : + = - and not begin with a dot"

UserName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Name of a user or session, safe as a segment of a path."""

K = TypeVar("K")
MAX_ACCEPTED_CHARS = 10_000
_NO_SPACE = r"[^\s\x1c-\x1f]"  # Python also splits words at information separators
_WORD_LENGTH = Field(max_length=UserModelLimits().max_word_characters)
WordText = Annotated[str, StringConstraints(pattern=rf"^{_NO_SPACE}+$"), _WORD_LENGTH]
AcceptedCount = Annotated[
    float, Field(gt=0, le=1e9, description="Number of acceptances, not necessarily an integer.")
]

_ROWS_FOR_CORRECTIONS = 32
"""Rows that take as long as the search for mistyped prefixes."""

_COMPLETIONS_PER_ROW = 16
"""Completions that are looked up and ranked in the time of one row."""

MAX_KEYS, MAX_KEY_LETTERS = 256, 64
"""Maximum characters with keys, and letters of a key."""

_MAX_SHARES = 1 + 1e-6
"""Maximum sum of the probabilities of a key's letters, with rounding errors."""

Letter = Annotated[str, StringConstraints(min_length=1, max_length=1)]
Coordinate = Annotated[float, Field(ge=-10, le=30, allow_inf_nan=False)]

MAX_LIST = 10_000
"""Maximum entries of a dictionary or a blocklist."""

_TOKENS_PER_ROW = 6
"""Work of a search's row: a keystroke reads hundreds without being bulk, as a user waits."""

_ERRORS = "probabilities of typing errors"
"""Name of what is derived of a model's table of spelling errors."""

_CACHED_BODY_BYTES = 4096
"""Maximum body size in bytes for which cached predictions are looked up."""

_Letters = Annotated[str, Field(min_length=1, max_length=MAX_KEY_LETTERS)]
_Probabilities = Annotated[
    dict[Letter, Annotated[float, Field(gt=0, le=1)]], Field(min_length=1, max_length=MAX_KEY_LETTERS)
]
_Key: TypeAlias = Annotated[
    Annotated[_Letters, Tag("<letters>")]
    | Annotated[_Probabilities, Tag("<probabilities>")]
    | Annotated[tuple[Coordinate, Coordinate], Tag("<place>")],
    by_type(
        "input should be letters, an object of probabilities by letter, or a place [x, y]",
        {str: "<letters>", dict: "<probabilities>", list: "<place>", tuple: "<place>"},
    ),
]
"""What is known of a typed character."""


class AcceptedRequest(WireModel):
    """Learn words and word pairs from a text that a user has accepted or written."""

    model_config = with_examples({"text": "length of an object", "context": "Return the "})

    text: str = Field(min_length=1, max_length=MAX_ACCEPTED_CHARS)
    """Accepted completion, or one or several sentences."""
    context: Annotated[str, Field(max_length=MAX_ACCEPTED_CHARS)] | None = None
    """Preceding text, or the end of it; empty at the start of a text. If null, the first word's predecessor is unknown
    and no pair is learnt for it."""
    typed: WordText | None = None
    """What the user had typed in place of the first word or its beginning, such as a misspelling."""


class WordIn(WireModel):
    """A word and its number of acceptances."""

    text: WordText
    """The word."""
    count: AcceptedCount


class PairIn(WireModel):
    """A pair of words, and how often the second was accepted after the first."""

    previous: Annotated[str, StringConstraints(pattern=rf"^{_NO_SPACE}*$"), _WORD_LENGTH]
    """Preceding word, not necessarily in `words`; empty at the start of a sentence."""
    text: WordText
    """The word; must be in `words`."""
    count: AcceptedCount


class CorrectionIn(WireModel):
    """A spelling and the word that replaced it, and how often it did."""

    typed: WordText
    """The spelling."""
    text: WordText
    """The word; must be in `words`."""
    count: AcceptedCount


class ImportRequest(WireModel):
    """Replace all words, pairs and corrections stored for a user; the format is that of the export."""

    model_config = with_examples(
        {
            "words": [{"text": "refund", "count": 3}],
            "corrections": [{"typed": "refudn", "text": "refund", "count": 2}],
        },
        {
            "words": [{"text": "Gramophone", "count": 3}, {"text": "records", "count": 1}],
            "pairs": [{"previous": "Gramophone", "text": "records", "count": 1}],
        },
    )

    user: str | None = None
    """User name as in an export; ignored, because the path names the user."""
    words: list[WordIn]
    """Words and counts; each word once."""
    pairs: list[PairIn] = Field(default_factory=list)
    """Word pairs and counts; each pair once."""
    corrections: list[CorrectionIn] = Field(default_factory=list)
    """Corrected spellings and counts; each spelling and word once."""

    def personal(self, bounds: UserModelLimits) -> UserModel:
        """Return the user model of these counts.

        Raises:
            InputError: there are too many words, pairs or corrections, one occurs twice, or the word
                of a pair or correction is not among the words.
        """
        rows: dict[str, list[tuple[Any, float]]] = {
            "words": [(one.text, one.count) for one in self.words],
            "pairs": [((one.previous, one.text), one.count) for one in self.pairs],
            "corrections": [((one.typed, one.text), one.count) for one in self.corrections],
        }
        counts = dict[str, dict[Any, float]]()
        for name, entries in rows.items():
            if len(entries) > (most := bounds.max_words if name == "words" else bounds.max_pairs):
                raise InputError.of(name, f"has {len(entries)} entries; at most {most} are stored per user")
            counts[name] = _unique_counts(entries, param=name)
        words = counts.pop("words")
        for name, table in counts.items():
            for index, (_, text) in enumerate(table):
                if text not in words:
                    param = f"{name}[{index}].text"
                    raise InputError.of(param, f"is {text!r}, which is not among the words")
        tables = [[(*key, count) for key, count in table.items()] for table in counts.values()]
        return user_model_from_counts(words.items(), *tables)


def _unique_counts(items: Iterable[tuple[K, float]], *, param: str) -> dict[K, float]:
    """Return counts by item; each may occur only once."""
    counts: dict[K, float] = {}
    for index, (item, count) in enumerate(items):
        if item in counts:
            raise InputError.of(f"{param}[{index}]", f"is {item!r}, which occurs twice")
        counts[item] = count
    return counts


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
        {"text": "Return the 536", "limit": 3, "keys": ["jkl", "def", {"m": 0.6, "n": 0.4}]},
        {"text": "The n", "limit": 3, "text_after": " of arguments", "before": "Call the function."},
    )

    text: str
    """Text before the cursor; empty for the start of a sentence."""
    before: str = ""
    """Lines of the document before that of the cursor. Models with a cache and networks read them; n-gram models do
    not, as they begin each line anew."""
    text_after: str = ""
    """Text after the cursor. Completions are weighed by its next words on the line, and not offered if it begins with
    them."""
    limit: int = Field(10, ge=1, le=100)
    """Maximum number of completions."""
    max_words: int = Field(1, ge=1, le=8)
    """Maximum words per completion; above 1, phrases are returned as well as words."""
    min_probability: float = Field(0.0, ge=0, le=1)
    """Minimum probability of the completions that are returned."""
    rank: Literal["probability", "savings"] = "probability"
    """Sort key: the probability, or the probability times the characters saved."""
    casing: Literal["exact", "ignore"] = "exact"
    """`ignore` matches the typed prefix in any case; models of lower-cased text always do."""
    fuzzy: int = Field(0, ge=0, le=MAX_EDITS)
    """Maximum typing errors in the prefix to correct; also limited to one per two letters of the prefix. A table of
    `gramophone fit-errors` for the model tells which errors are frequent; without one, all are equally so."""
    keys: Annotated[list[_Key], Field(min_length=1, max_length=MAX_KEYS)] | None = None
    """What is known of each character of the word being typed, as many as `prefix` of the reply has: the probability of
    each letter that may be meant; or the letters of a key as a string, equally probable; or the place of a touch, its x
    and y in key widths and heights from the upper left corner of `layout`. Of each, the ten most probable letters
    count, in the case of the typed character. With keys, `fuzzy` corrects errors that no letter of a key explains."""
    layout: Literal["qwerty", "qwertz", "azerty"] = "qwerty"
    """Keyboard of the touches in `keys`."""
    dictionary: list[DictionaryEntry] = Field(default_factory=list, max_length=MAX_LIST)
    """Additional words and phrases to offer, known to the model or not; an object with `wordlist` stands for the
    entries of a stored list."""
    blocklist: list[BlockedEntry] = Field(default_factory=list, max_length=MAX_LIST)
    """Words and phrases that completions must not contain, in any case and Unicode form, nor their misspellings; an
    object with `wordlist` stands for the entries of a stored list."""
    user: UserName | None = None
    """User whose accepted words are also offered; see `/v1/autocomplete/users/{user}/accepted`."""
    user_weight: float = Field(0.2, ge=0, le=1)
    """Weight of the user's words and the dictionary in the probabilities, if any of these words match."""
    session: UserName | None = None
    """Session id. A newer request of the same session cancels older ones, which get 409 `superseded`."""
    no_repeats: bool = False
    """Leave out what the session was shown while the word was typed so far; others take the places. Needs `session`."""
    max_steps: int = Field(128, ge=1, le=4096)
    """Maximum model evaluations for the search; more leave less probability unexplored."""
    open_vocabulary: bool = False
    """Also offer words outside the training text, if tokens are pieces or characters."""


def letters_of_keys(keys: Sequence[_Key], layout: str) -> list[KeyLetters]:
    """Return the probability of each letter meant by each key.

    Raises:
        InputError: letters of a key are not distinct, or their probabilities are more than 1 together.
    """
    found = list[KeyLetters]()
    for number, key in enumerate(keys):
        if isinstance(key, tuple):
            found.append(letters_of_touch(*key, layout))
            continue
        letters = dict.fromkeys(key, 1 / len(key)) if isinstance(key, str) else key
        if len(letters) < len(key):
            raise InputError.of(f"keys[{number}]", f"is {key!r}, whose letters are not distinct")
        if (total := math.fsum(letters.values())) > _MAX_SHARES:
            raise InputError.of(
                f"keys[{number}]", f"has probabilities whose sum is {total:g}; at most 1 is accepted"
            )
        found.append(letters)
    return found


_SETTINGS = shared_names(AutocompleteRequest, RankingSettings)
_values_of = attrgetter("casing", *_SETTINGS)


@lru_cache(maxsize=256)
def _settings(casing: str, *values: Any) -> RankingSettings:
    """Return the settings of requests; most are equal."""
    return RankingSettings(ignore_case=casing == "ignore", **dict(zip(_SETTINGS, values, strict=True)))


def autocomplete(
    models: Sequence[WeightedModel],
    request: AutocompleteRequest,
    limits: Limits,
    *,
    user: UserModel | None = None,
    dictionary: Sequence[Any] | None = None,
    blocklist: Sequence[Any] | None = None,
    evidence: TypingEvidence = NO_EVIDENCE,
    cached: NextTokenEntry | None = None,
    shown: CompletionHistory | None = None,
) -> Work[Any, AutocompleteReply]:
    """Complete a text; see `rank_completions` for arguments and errors.

    The dictionary and the blocklist are the request's, if they are not given with word lists for references to them.
    The completions are added to `shown`.
    """
    entries: Sequence[Any] = request.dictionary if dictionary is None else dictionary
    blocked: Sequence[Any] = request.blocklist if blocklist is None else blocklist
    ranking = yield from rank_completions(
        models,
        request.text,
        _settings(*_values_of(request)),
        limits,
        user=user,
        dictionary=[
            (one, 1.0)
            if isinstance(one, str)
            else (one.text, one.weight)
            if isinstance(one, WeightedEntry)
            else one
            for one in entries
        ],
        blocklist=blocked,
        evidence=evidence,
        cached=cached,
        shown=shown,
    )
    typed, weights = ranking.typed, ranking.weights
    if shown is not None:
        shown.add(request.text, typed.start, [one.text for one in ranking.completions])
    given_prefix = request.text[typed.start :]
    # with a pattern, punctuation marks are words
    joins = request.max_words > 1 and any(getattr(loaded.tokenizer, "pattern", None) for loaded, _ in models)
    candidates = [
        CompletionCandidate(
            text,
            " " * (typed.space and not found.begun and needs_space(request.text, text)) + text[len(given) :]
            if text.startswith(given)
            else None,  # typed characters change
            len(request.text) - len(given),
            found.probability,
            found.num_words,
            found.is_complete,
            found.edits,
            "user" if found.of_user > found.of_model else "model",
        )
        for found in ranking.completions
        for given in [found.begun or given_prefix]
        for text in [join_words(found.text) if joins and found.num_words > 1 else found.text]
    ]
    address = max(zip(weights, models, strict=True), key=itemgetter(0))[1].loaded.address
    by_model = shares(weights, models)
    return AutocompleteReply(address, given_prefix, typed.start, candidates, ranking.unexplored, by_model)


class Autocomplete(ModelsOperation[AutocompleteReply]):
    """Complete the word being typed, or predict the next word or phrase.

    Probabilities are exact: they sum over all tokenisations of a word, as far as `max_steps` allows. A newer request
    of the same `session` cancels older ones.
    """

    request = AutocompleteRequest

    def __init__(self, call: Call, given: AutocompleteRequest) -> None:
        super().__init__(call, given)
        self.session = given.session
        if given.no_repeats and given.session is None:
            raise InputError.of("no_repeats", "is true, which requires session")
        self._shown: CompletionHistory | None = None
        self._dictionary = call.word_lists(given.dictionary, "dictionary")
        self._blocklist = call.word_lists(given.blocklist, "blocklist")
        self._keys = letters_of_keys(given.keys, given.layout) if given.keys else []
        self._user: UserModel | None = None
        self._cached: NextTokenEntry | None = None
        if given.user is not None:
            try:
                self._user = call.resources.users.get(call.owner, given.user)
            except UserStoreError as error:  # typing goes on
                call.report_unusable("completed without the user's words", error)

    @override
    def prepare(self) -> Iterator[Callable[[], Any]]:
        yield from super().prepare()
        for loaded in self.models if self.given.casing == "ignore" else ():
            order, texts = loaded.token_trie.folded.ids, loaded.ngram_texts
            if texts is not None and not texts.is_ranked(order):
                yield partial(texts.rank, order)
        if self.slots:
            yield lambda: [loaded.token_trie for loaded in self.models]
        if len(self.models) > 1 and not all("checker" in vars(loaded) for loaded in self.models):
            yield lambda: [loaded.checker for loaded in self.models]  # the first use builds it
        corrects = bool(self.given.fuzzy or self._keys)
        if corrects and not all(map(self._is_prepared, self.models)):
            yield self._prepare_corrections
        lists = [one for one in self._dictionary if isinstance(one, WordList)] if corrects else []
        if any("corrected" not in vars(one) for one in lists):
            yield lambda: [one.corrected for one in lists]

    def _ignores_case(self, loaded: LoadedModel) -> bool:
        return self.given.casing == "ignore" or loaded.tokenizer.normaliser.changes_case

    def _is_prepared(self, loaded: LoadedModel) -> bool:
        tokens = loaded.token_trie
        return _ERRORS in tokens.derived and SortedLetters.are_known(
            tokens, ignore_case=self._ignores_case(loaded)
        )

    def _prepare_corrections(self) -> None:
        """Sort the letters of the models' words, and read tables of spelling errors, once for each model."""
        importlib.import_module("models.completion.beginnings")  # compiled
        for loaded in self.models:
            SortedLetters.of(loaded.token_trie, spaced=True, ignore_case=self._ignores_case(loaded))
            if _ERRORS not in loaded.token_trie.derived:
                try:
                    table = self.call.resources.errors.read(loaded.address)
                except DomainError as error:  # typing goes on
                    self.call.report_unusable("corrected without the table of errors", error)
                    table = None
                loaded.token_trie.derived[_ERRORS] = table and table.rates.gains

    @override
    def cost(self) -> Cost:
        given, count = self.given, len(self.models)
        found = given.limit * given.max_words * count // _COMPLETIONS_PER_ROW
        each = given.max_steps * (3 + given.max_words) // 4 + found
        # none for single words of a word tokenizer without corrections
        searched = sum(given.max_words > 1 or not one.token_trie.whole_words for one in self.models)
        rows = (
            searched * each
            + (NUM_WEIGHED if given.text_after else 0)
            + (_ROWS_FOR_CORRECTIONS * count if given.fuzzy or self._keys else 0)
        )
        return Cost(self.call.num_tokens, reread=_TOKENS_PER_ROW * rows, predicted=rows, sequences=1)

    @override
    def runs_inline(self, cost: Cost) -> bool:
        # a keystroke within a word may need no model step
        loaded, *others = self.models
        if others or cost.predicted:
            return False
        if loaded.ngram_texts is not None:
            return cost.is_little
        if self.call.num_bytes <= _CACHED_BODY_BYTES:
            context = split_prefix(loaded.tokenizer, self.given.text).context
            self._cached = loaded.next_token_cache.find(context_key(context, self.given.before))
        return self._cached is not None or (cost.is_little and is_lookup(loaded.model))

    @override
    def keep_shown(self) -> None:
        if self._shown is not None and self.session is not None:
            self.call.resources.histories.keep(self.call.owner, self.session, self._shown)

    def _evidence(self) -> TypingEvidence:
        given = self.given
        if not (given.before or given.text_after or given.fuzzy or self._keys):
            return NO_EVIDENCE
        gains = {one.address: one.token_trie.derived.get(_ERRORS) for one in self.models}
        known = {address: one for address, one in gains.items() if one}
        return TypingEvidence(given.before, given.text_after, self._keys, known)

    @override
    def run(self) -> Work[Any, AutocompleteReply]:
        if self.given.no_repeats and self.session is not None:
            self._shown = self.call.resources.histories.get(self.call.owner, self.session)
        return autocomplete(
            self.weighted,
            self.given,
            self.call.limits,
            user=self._user,
            dictionary=self._dictionary,
            blocklist=self._blocklist,
            evidence=self._evidence(),
            cached=self._cached,
            shown=self._shown,
        )
