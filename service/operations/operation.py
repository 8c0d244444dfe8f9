"""An operation: an endpoint's work on one request, with its models, its cost, its run and its reply.

The service answers operations over HTTP (`service.routes.replies`), the command line in its own
process (`service.local.ask`). Both give an operation a `Call`: who asks, and what may be used
for the answer.

A step of an operation is the work done before other requests run, a few milliseconds at most: larger
steps delay interactive requests, smaller ones cost throughput. The comment above each group of sizes
names its benchmark.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from models.arrays import FloatArray
from models.calls import Work
from models.checking.error_model import CalibrationStore, ErrorTableStore
from models.checking.lexicon import HunspellDictionary
from models.completion.history import HistoryStore
from models.errors import DomainError, FormatError, InputError, StatesFullError
from models.language_model import is_lookup
from models.phrases import MAX_PHRASE_WEIGHT, MAX_PHRASES, Phrase, PhraseList
from models.reranking.features import CANDIDATES_PER_STEP
from models.reranking.ranking import ProfileStore
from models.scoring.model_weights import WeightedModel
from models.text_model import Limits, TextModel
from models.word_list import WordList
from models.words import fold_words
from service.engine.job import RequestOptions
from service.hosting.loaded_model import LoadedModel
from service.hosting.state_store import OwnedStateStore, StateStore
from service.hosting.user_store import UserStore
from service.hosting.word_list_store import WordListStore
from service.schemas.replies import to_json
from service.schemas.wire import ModelRequest, WireModel, parse_json, parse_object
from service.schemas.word_lists import StoredPhrases, StoredWords

L = TypeVar("L")
R = TypeVar("R")
T = TypeVar("T")

# bench_service and bench_completion
VALUES_PER_STEP = 1 << 17
"""Entries of distributions [B, V] computed per step, about a millisecond."""

ROWS_PER_STEP = (16, 256)
"""Minimum and maximum rows of a step of distributions: a network takes nearly as long for fewer."""

PROMPT_TOKENS_PER_STEP = 1024
"""Tokens of a prompt converted to entries per step."""


# bench_states
MIN_SHARED_CONTINUATIONS = 8
"""Number of continuations of one state at which one distribution costs less than separate scores."""

SPARSE_RATIO = 64
"""Vocabulary size per requested token at which n-gram lookups cost less than a distribution."""


# bench_rerank
MAX_LINE_CHARS = 1 << 15
"""Characters of texts that an n-gram model scores in one call from their bytes: about a millisecond."""

MAX_PAIR_CHARS = 1 << 18
"""Characters of documents and queries whose ids are in memory together."""

CANDIDATES_PER_BATCH = 2048
"""Candidates of consecutive lists of a stream re-ranked together."""

LINES_PER_BATCH = 256
"""Maximum lines of a stream, lists or texts, in one batch."""

BYTES_PER_PIECE = 1 << 15
"""Size at which finished lines are sent and other requests run."""


# bench_tuning
LISTS_AT_ONCE = 64
"""Lists of candidates whose features are computed together."""

_MAX_MODELS = 8
MAX_WORD_LISTS = 8
"""Maximum word lists that a field of a request names, and of a language."""

HunspellDictionaries = tuple[HunspellDictionary, ...]
Dictionaries = Mapping[str, HunspellDictionary | FormatError]
"""Dictionaries by name; of a damaged one the error."""

BYTES_PER_TOKEN = 4
"""Approximate bytes of a body per token, for admission before the text is tokenised."""

TOKENS_PER_PREDICTION = 16
"""Approximate cost of a distribution and a choice from it, in tokens read."""

_ENTRIES_PER_TOKEN = 8
"""Approximate number of reply entries, such as candidates, written in the time of reading one token."""

_COMPARISONS_PER_TOKEN = 16
"""Approximate number of pairs of candidates compared in the time of reading one token."""

# bench_heavy_company, bench_rerank, bench_states: limits of work for bulk and inline requests
_BULK_WORK = 1 << 12
"""Work in tokens read above which a request is bulk and yields to other requests."""

_FEW_SEQUENCES = 8
"""Maximum sequences that may generate long texts without being bulk, because their steps are short."""

_INLINE_TOKENS, _INLINE_PREDICTIONS, _INLINE_ENTRIES = 512, 64, 256
"""Bounds of requests to n-gram models that are answered faster at once than through the model thread."""


class ModelWeight(WireModel):
    """One of several models of a request."""

    model: str
    """Model: `name`, `name@7` or `name@champion`."""
    weight: float = Field(1.0, gt=0, le=1e9)
    """Weight before the text is seen, relative to those of the other models."""


class ModelsRequest(ModelRequest):
    """The model of a request, or several models."""

    models: list[ModelWeight] = Field(default_factory=list, max_length=_MAX_MODELS)
    """Several models instead of `model`, such as one for each language of the user; their tokens may differ. The
    weights change at each word: a model that predicts the text better has a larger one."""

    @model_validator(mode="after")
    def _model_or_models(self) -> Self:
        if self.models and self.model is not None:
            raise PydanticCustomError("one_of", "give either model or models")
        return self


def read_batch(lines: Iterator[L], size: Callable[[L], int]) -> Work[Any, list[L]]:
    """Take the next batch of lines to answer together; empty at the end.

    Args:
        lines: the lines, parsed lazily.
        size: returns the number of candidates or texts in a line.
    """
    batch: list[L] = []
    count = read = 0
    for line in lines:
        batch.append(line)
        count, read = count + size(line), read + size(line)
        if count >= CANDIDATES_PER_BATCH or len(batch) >= LINES_PER_BATCH:
            break
        if read >= CANDIDATES_PER_STEP:
            read = 0
            yield None
    return batch


def answer_each(
    answer: Callable[[list[L]], Work[Any, Sequence[R | DomainError]]], batch: list[L]
) -> Work[Any, list[R | DomainError]]:
    """Answer lines together; if one is invalid, each half apart: only invalid lines fail.

    If the store of states is full, known only after the work, each line is answered apart.
    """
    try:
        return [*(yield from answer(batch))]
    except (InputError, StatesFullError) as error:
        if len(batch) == 1:
            return [error]
        size = 1 if isinstance(error, StatesFullError) else -(-len(batch) // 2)
    outcomes: list[R | DomainError] = []
    for begin in range(0, len(batch), size):
        outcomes += yield from answer_each(answer, batch[begin : begin + size])
    return outcomes


class Cost(NamedTuple):
    """Upper bounds of an operation's work, from the validated request.

    Attributes:
        read: tokens to read.
        reread: tokens read again, such as a context common to several texts.
        predicted: next-token distributions.
        entries: entries of the reply, such as candidates or tokens with their scores.
        compared: pairs of candidates compared.
        sequences: sequences decoded side by side; None if no distribution depends on another.
        bulk: true or false for requests that are bulk, or not, at any size.
    """

    read: int = 0
    reread: int = 0
    predicted: int = 0
    entries: int = 0
    compared: int = 0
    sequences: int | None = None
    bulk: bool | None = None

    @property
    def is_bulk(self) -> bool:
        """True if interactive requests take precedence."""
        if self.bulk is not None:
            return self.bulk
        work = self.read + self.reread + self.entries // _ENTRIES_PER_TOKEN
        work += self.compared // _COMPARISONS_PER_TOKEN
        if self.sequences is None or self.sequences > _FEW_SEQUENCES:
            work += TOKENS_PER_PREDICTION * self.predicted
        return work > _BULK_WORK

    @property
    def is_little(self) -> bool:
        """True if an n-gram model does the work in less time than a change of threads takes."""
        return (
            self.read <= _INLINE_TOKENS
            and self.predicted <= _INLINE_PREDICTIONS
            and self.entries <= _INLINE_ENTRIES
            and not self.compared
            and not self.is_bulk
        )


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Stores and settings that operations use besides models.

    Attributes:
        limits: limits of one request.
        profiles: profiles of re-ranking.
        calibrations: precision of checks by threshold.
        errors: tables of spelling errors.
        states: stored model states.
        users: accepted words of autocomplete users.
        histories: completions that sessions of autocomplete have shown.
        word_lists: stored word lists.
        languages: models of LanguageTool's languages.
        dictionaries: Hunspell dictionaries by name.
    """

    limits: Limits
    profiles: ProfileStore
    calibrations: CalibrationStore
    errors: ErrorTableStore
    states: StateStore
    users: UserStore
    word_lists: WordListStore
    languages: Mapping[str, str | None] = field(default_factory=dict)
    dictionaries: Dictionaries = field(default_factory=dict)
    histories: HistoryStore = field(default_factory=HistoryStore)


def _stored_phrases(words: WordList, class_name: str, most: int) -> PhraseList:
    """Return a list's entries as phrases, the heaviest of those that differ in case only, of a class.

    Raises:
        InputError: there are too many, or one is no phrase.
    """
    if words.info.entries > most:
        raise InputError(f"has {words.info.entries} entries; at most {most} can be phrases")
    known_class, found = words.derived.get("phrases", ("", None))
    if found is None or known_class != class_name:
        entries = sorted(words.entries(), key=itemgetter(1))
        distinct = {tuple(fold_words(text)): (text, weight) for text, weight in entries}
        found = PhraseList(
            [
                Phrase.model_construct(
                    text=text, weight=min(weight, MAX_PHRASE_WEIGHT), class_name=class_name
                )
                for text, weight in distinct.values()
            ]
        )
        words.derived["phrases"] = class_name, found
    phrases: PhraseList = found
    return phrases


class Call:
    """Request of a client, as an operation sees it; on its own it counts and logs nothing.

    Attributes:
        resources: what the operation may use.
        owner: owner of stored states and users: the name of the API key, or an empty string.
        request_id: id of the request in the log.
        num_bytes: size of the body.
    """

    resources: Resources
    owner: str
    request_id: str
    num_bytes: int

    def resolve(self, address: str | None, *, any_version: bool = False) -> LoadedModel:
        """Return the loaded model at an address (None for the default), in use until the request ends.

        With `any_version`, a model's served version replaces one that is not served.

        Raises:
            ModelNotFoundError: the service does not serve the model.
            NotReadyError: the model is still loading, or could not be loaded.
        """
        raise NotImplementedError

    def use_model(self, loaded: LoadedModel) -> None:
        """Count a model as used until the request ends, and name it in the log."""

    def count_scored(self, loaded: TextModel, tokens: int) -> None:
        """Count scored tokens of a model."""

    def count_prompt(self, loaded: TextModel, tokens: int) -> None:
        """Count tokens of a model read as prompts or contexts."""

    def count_generated(self, loaded: TextModel, tokens: int, finish_reasons: Iterable[str]) -> None:
        """Count tokens generated by a model, and the choices by why they ended."""

    def annotate(self, **fields: str | float) -> None:
        """Add fields to the log line."""

    def report_unusable(self, event: str, error: DomainError, **fields: str) -> None:  # noqa: ARG002 - for logs
        """Report a document without which the operation goes on.

        Raises:
            DomainError: the operation ends with the document's error, as the caller wants all documents.
        """
        raise error

    def find_dictionaries(self, names: Sequence[str]) -> HunspellDictionaries:
        """Return the Hunspell dictionaries that a request names.

        Raises:
            InputError: there is none of that name.
            FormatError: one is damaged.
        """
        dictionaries, found = self.resources.dictionaries, []
        for index, name in enumerate(names):
            if name not in dictionaries:
                known = ", ".join(dictionaries) or "none: GRAMOPHONE_DICTIONARIES names them"
                param = f"dictionaries[{index}]"
                raise InputError.of(param, f"is {name!r}; this service has {known}")
            if isinstance(one := dictionaries[name], FormatError):
                raise one.with_traceback(None)  # it would grow
            found.append(one)
        return tuple(found)

    def word_lists(self, entries: Sequence[Any], param: str) -> list[Any]:
        """Return entries of a request, with the stored word lists that some of them name.

        Raises:
            InputError: there are too many lists.
            UnknownWordListError: the owner has no list of a name.
            WordListStoreError: a list is damaged.
        """
        found = list[Any]()
        if not entries:
            return found
        count = sum(isinstance(one, StoredWords) for one in entries)
        if count > MAX_WORD_LISTS:
            raise InputError.of(param, f"names {count} word lists; at most {MAX_WORD_LISTS} are accepted")
        for index, one in enumerate(entries):
            if isinstance(one, StoredWords):
                stored = self.resources.word_lists
                param_of = f"{param}[{index}].wordlist"
                found.append(stored.find(self.owner, one.wordlist, param=param_of).words)
            else:
                found.append(one)
        return found

    def phrases(self, entries: Sequence[Phrase | StoredPhrases], most: int = MAX_PHRASES) -> PhraseList:
        """Return the phrases of a request, with those of the stored word lists that it names.

        Raises:
            InputError: there are too many, or one is invalid, see `PhraseList`.
            UnknownWordListError: the owner has no list of a name.
            WordListStoreError: a list is damaged.
        """
        given = {index: one for index, one in enumerate(entries) if isinstance(one, Phrase)}
        phrases = PhraseList([*given.values()], [*given])
        found = self.word_lists(entries, "phrases")
        stored = []
        for index, one in enumerate(entries):
            if isinstance(one, StoredPhrases):
                try:
                    stored.append(_stored_phrases(found[index], one.class_name, most))
                except InputError as error:
                    problem = str(error) if error.param is None else f"has an entry that {error.problem}"
                    raise InputError.of(f"phrases[{index}].wordlist", problem) from None
        if len(stored) == 1 and not given:
            return stored[0]
        if stored:
            phrases = phrases.joined(stored)
        if len(phrases) > most:
            raise InputError.of("phrases", f"have {len(phrases)} entries; at most {most} are accepted")
        return phrases

    @property
    def limits(self) -> Limits:
        """Limits of the request."""
        return self.resources.limits

    @property
    def states(self) -> OwnedStateStore:
        """The owner's stored states."""
        return OwnedStateStore(self.resources.states, self.owner)

    @property
    def num_tokens(self) -> int:
        """Approximate number of tokens in the body."""
        return self.num_bytes // BYTES_PER_TOKEN


class Operation(ABC, Generic[R]):
    """Work on one request; made on the event loop, where it resolves its models.

    Args:
        call: the client's request.
        given: its validated body.

    Attributes:
        call: the client's request.
        models: the loaded models.
        slots: members of classes that the models get; None for their own.
        session: name of a session whose newest request replaces older ones; None without one.
        streams: whether the client asked for events, see `EventsOperation`.
    """

    request: ClassVar[Any]
    """Model of the body, or a union."""

    may_run_inline: bool = False
    """Whether little work on n-gram models is done at once, without a change of threads."""

    session: str | None = None
    streams: bool = False
    slots: Mapping[str, Any] | None = None

    def __init__(self, call: Call, *models: LoadedModel) -> None:
        self.call, self.models = call, models

    @classmethod
    def parse(cls, body: bytes) -> Any:
        """Validate a body.

        Raises:
            InputError: it is invalid.
        """
        return parse_json(cls.request, body)

    @classmethod
    def of(cls, call: Call, given: Any) -> "Operation[Any]":
        """Return the operation for a validated request."""
        return cls(call, given)

    def cost(self) -> Cost:
        """Return upper bounds of the work: by default, each model reads the body."""
        read = self.call.num_tokens
        return Cost(read, reread=(len(self.models) - 1) * read)

    @abstractmethod
    def run(self) -> Work[Any, R]:
        """Do the work."""

    def reply(self, result: R) -> bytes | Iterator[bytes]:
        """Return the reply in JSON, at once or in parts, with other requests between."""
        return to_json(result)

    def keep_shown(self) -> None:
        """Remember what the reply shows, just before it is sent; nothing by default."""

    def prepare(self) -> Iterable[Callable[[], Any]]:
        """Yield steps before the work that may take long, for a thread; what is between them is not."""
        # thousands of members take tens of milliseconds
        return [self._replace_members] if self.slots else ()

    def _replace_members(self) -> None:
        self.models = tuple(loaded.with_slots(self.slots) for loaded in self.models)

    def runs_inline(self, cost: Cost) -> bool:
        """Return whether the work takes less time than a change of threads."""
        if not (self.may_run_inline and cost.is_little):
            return False
        return bool(self.models) and all(is_lookup(loaded.model) for loaded in self.models)


class ModelOperation(Operation[R]):
    """Operation of one model."""

    def __init__(self, call: Call, given: Any) -> None:
        self.given, self.slots = given, getattr(given, "slots", None)
        super().__init__(call, call.resolve(given.model))


class ModelsOperation(Operation[R]):
    """Operation of one model, or of several with weights."""

    def __init__(self, call: Call, given: Any) -> None:
        if given.models:
            models = [call.resolve(one.model) for one in given.models]
            self._weights = [one.weight for one in given.models]
        else:
            models, self._weights = [call.resolve(given.model)], [1.0]
        super().__init__(call, *models)
        self.given, self.slots = given, given.slots

    @property
    def weighted(self) -> list[WeightedModel]:
        """The models and their weights."""
        return list(map(WeightedModel, self.models, self._weights))


class LinesOperation(Operation[Sequence[T]], Generic[L, T]):
    """Operation on a list of items, or on a stream of lines with an item each, answered in batches.

    Attributes:
        items: items of a JSON body; empty for a stream.
    """

    settings: ClassVar[type[BaseModel]]
    """Model of the settings: the query string, if the body is a stream."""

    items: Sequence[L]

    @classmethod
    def parse_settings(cls, query: Mapping[str, str]) -> Any:
        """Validate the settings of a stream.

        Raises:
            InputError: a setting is unknown or invalid.
        """
        return parse_object(cls.settings, query, strict=False)

    @abstractmethod
    def parse_lines(self, body: bytes, form: str) -> Iterator[L | InputError]:
        """Yield the items of a stream in a format, lazily, or the errors of unparsable ones."""

    @abstractmethod
    def answer(self, items: Sequence[L]) -> Work[Any, Sequence[T | DomainError]]:
        """Answer items together; an invalid one fails all."""

    @abstractmethod
    def line(self, result: T) -> Iterable[bytes]:
        """Return an item's reply line, in one or more parts."""

    def size(self, item: L) -> int:  # noqa: ARG002 - for items of several parts
        """Return the number of candidates or texts in an item."""
        return 1

    @property
    def address(self) -> str:
        """Address of the main model."""
        return self.models[0].address

    def run(self) -> Work[Any, Any]:
        """Answer the items of a JSON body."""
        return self.answer(self.items)


class EventsOperation(Operation[R], Generic[T, R]):
    """Operation whose work also yields events, for a stream.

    Attributes:
        ends_with_result: whether the reply is the last event.
    """

    ends_with_result: bool = True

    @abstractmethod
    def event(self, event: T) -> bytes:
        """Return an event's JSON."""


class RowsOperation(Operation[R]):
    """Operation that also replies with raw numbers, float32 [B, K]."""

    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Return the shape of all rows, B and K."""

    @abstractmethod
    def rows(self) -> Work[FloatArray, None]:
        """Yield batches of rows [·, K]."""


def write_reply(operation: Operation[R]) -> Work[Any, bytes]:
    """Do an operation's work, and write its reply."""
    reply = operation.reply((yield from operation.run()))
    if isinstance(reply, bytes):
        return reply
    parts: list[bytes] = []
    for part in reply:
        if parts:
            yield None
        parts.append(part)
    return b"".join(parts)


def request_options(
    cost: Cost, *, request_id: str = "", owner: str = "", timeout_ms: int | None = None
) -> RequestOptions:
    """Return the scheduling options of work that costs so much."""
    return RequestOptions(
        request_id=request_id,
        timeout_s=None if timeout_ms is None else timeout_ms / 1000,
        bulk=cost.is_bulk,
        tokens=cost.read + cost.predicted,
        owner=owner,
    )
