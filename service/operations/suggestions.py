"""Completions of typed text, and checks of texts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import structlog
from typing_extensions import override

from models.checking.calibration import Calibration
from models.checking.error_model import ErrorTable
from models.completion.user_model import UserModel
from models.errors import LanguageModelError, UsersUnavailableError
from models.language_model import is_lookup
from service.engine.job import Work
from service.engine.prefix_cache import NextTokenEntry
from service.hosting.loaded_model import LoadedModel
from service.operations.operation import Call, Cost, Operation
from service.schemas.pieces import reply_pieces
from service.schemas.replies import to_json
from service.schemas.suggestions import AutocompleteReply, CheckReply, LanguageToolReply
from service.schemas.wire import parse_form
from service.use_cases.autocomplete import (
    AutocompleteRequest,
    autocomplete,
    cached_next_tokens,
    max_search_rows,
)
from service.use_cases.check import CheckRequest, check
from service.use_cases.inputs import dictionaries_of_languages, find_dictionaries
from service.use_cases.languagetool import LanguageToolRequest, check_languages, choose_languages
from service.use_cases.model_weights import ModelsRequest, WeightedModel

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_TOKENS_PER_ROW = 6
"""Work of a row of a search, of which a keystroke reads hundreds without being bulk: a user is waiting."""

_CACHED_BODY_BYTES = 4096
"""Maximum body size in bytes for which cached predictions are looked up."""


class _WeightedModels(Operation[T]):
    """Operation of one model, or of several with weights."""

    def __init__(self, call: Call, given: ModelsRequest) -> None:
        if given.models:
            models = [call.resolve(one.model) for one in given.models]
            self._weights = [one.weight for one in given.models]
        else:
            models, self._weights = [call.resolve(given.model)], [1.0]
        super().__init__(call, *models)
        self.slots = given.slots

    @property
    def weighted(self) -> list[WeightedModel]:
        """The models and their weights."""
        return list(map(WeightedModel, self.models, self._weights))


class Autocomplete(_WeightedModels[AutocompleteReply]):
    """Complete the word being typed, or predict the next word or phrase.

    Probabilities are exact: they sum over all tokenisations of a word, as far as `max_steps` allows. A newer request
    of the same `session` cancels older ones.
    """

    request = AutocompleteRequest

    def __init__(self, call: Call, given: AutocompleteRequest) -> None:
        self.given, self.session = given, given.session
        super().__init__(call, given)
        self._user = _personal_model(call, given.user)
        self._cached: NextTokenEntry | None = None

    @override
    def prepare(self) -> Iterator[Callable[[], Any]]:
        yield from super().prepare()
        if self.slots:
            yield lambda: [loaded.token_trie for loaded in self.models]
        if len(self.models) > 1 and not all("checker" in vars(loaded) for loaded in self.models):
            yield lambda: [loaded.checker for loaded in self.models]  # the first use builds it

    @override
    def cost(self) -> Cost:
        rows = max_search_rows(self.weighted, self.given)
        return Cost(self.call.num_tokens, reread=_TOKENS_PER_ROW * rows, predicted=rows, sequences=1)

    @override
    def runs_inline(self, cost: Cost) -> bool:
        # a keystroke within a word may need no model step
        loaded, *others = self.models
        if others or cost.predicted:
            return False
        if self.call.num_bytes <= _CACHED_BODY_BYTES:
            self._cached = cached_next_tokens(loaded, self.given)
        return self._cached is not None or (cost.is_little and is_lookup(loaded.model))

    @override
    def run(self) -> Work[Any, AutocompleteReply]:
        return autocomplete(self.weighted, self.given, self.call.limits, user=self._user, cached=self._cached)

    @override
    def reply(self, result: AutocompleteReply) -> bytes:
        return to_json(result)


def _personal_model(call: Call, user: str | None) -> UserModel | None:
    """Return a user's personal model.

    If it cannot be read, this is logged and there is none: typing goes on.
    """
    if user is None:
        return None
    try:
        return call.resources.users.get(call.owner, user)
    except UsersUnavailableError as error:
        _log.warning("completed without the user's words", reason=str(error))
        return None


class Check(_WeightedModels[tuple[CheckReply, list[int]]]):
    """Find probable errors from the text on both sides of each word, and suggest corrections.

    The check finds unknown words and known words that are wrong in their context. Alternatives of a word are words of
    similar spelling, missing or extra spaces, and the request's `candidates`; models without word tokens only consider
    strings near the words with the highest surprisal.
    """

    request = CheckRequest

    def __init__(self, call: Call, given: CheckRequest) -> None:
        self.given = given
        super().__init__(call, given)

    @override
    def prepare(self) -> Iterator[Callable[[], Any]]:
        yield from super().prepare()
        yield self._read_documents

    def _read_documents(self) -> None:
        self._calibration, self._errors = read_documents(
            self.call, self.models, needed=self.given.precision is not None
        )

    @override
    def cost(self) -> Cost:
        read = self.call.num_tokens
        return Cost(read, reread=(len(self.models) - 1) * read)

    @override
    def run(self) -> Work[Any, tuple[CheckReply, list[int]]]:
        word_lists = find_dictionaries(self.call.resources.dictionaries, self.given.dictionaries)
        return check(self.weighted, self.given, self._calibration, self.call.limits, word_lists, self._errors)

    @override
    def reply(self, result: tuple[CheckReply, list[int]]) -> Iterator[bytes]:
        reply, num_tokens = result
        for loaded, number in zip(self.models, num_tokens, strict=True):
            self.call.count_scored(loaded, number)
        num_entries = (1 + self.given.max_suggestions) * len(reply.issues)
        return reply_pieces(reply, words=len(reply.words), issues=num_entries)


def read_documents(
    call: Call, models: Sequence[LoadedModel], *, needed: bool = False
) -> tuple[Calibration | None, dict[str, ErrorTable | None]]:
    """Build the models' checkers; return a single model's calibration, and tables of errors by address.

    For a thread: the model thread stays free, and the registry may be remote. A damaged document is
    logged and not used, unless it is a calibration that the request needs.
    """
    _ = [model.checker for model in models]  # the first use builds it

    def read(kind: str, store: Callable[[str], T | None], address: str, *, needed: bool = False) -> T | None:
        try:
            return store(address)
        except LanguageModelError as error:
            if needed:
                raise
            _log.warning(f"{kind} not read", model=address, reason=str(error))
            return None

    resources = call.resources
    addresses = {loaded.address for loaded in models}
    tables = {one: read("table of errors", resources.errors.read, one) for one in addresses}
    if len(models) > 1:
        return None, tables

    def find(address: str) -> Calibration | None:
        return resources.calibrations.read(address, any_version=needed)

    return read("calibration", find, models[0].address, needed=needed), tables


class LanguageToolCheck(Operation[LanguageToolReply]):
    """Find probable errors, with LanguageTool's API, for its existing clients: editors, browsers, LibreOffice.

    Positions count UTF-16 code units. The models of the languages are those of `GRAMOPHONE_LANGUAGES`, the dictionaries
    those of `GRAMOPHONE_DICTIONARIES`. GET has the fields in the query string.
    """

    request = LanguageToolRequest

    def __init__(self, call: Call, given: LanguageToolRequest) -> None:
        self.given, languages = given, call.resources.languages
        self._codes = choose_languages(languages, given.language)
        super().__init__(call, *(call.resolve(languages[code]) for code in self._codes))

    @override
    @classmethod
    def parse(cls, body: bytes) -> LanguageToolRequest:
        return parse_form(LanguageToolRequest, body)

    @override
    def prepare(self) -> Iterator[Callable[[], Any]]:
        yield self._read_documents

    def _read_documents(self) -> None:
        _, self._errors = read_documents(self.call, self.models)

    @override
    def cost(self) -> Cost:
        read = self.call.num_tokens
        return Cost(read, reread=(len(self.models) - 1) * read)

    @override
    def run(self) -> Work[Any, LanguageToolReply]:
        dictionaries, codes = self.call.resources.dictionaries, [*self._codes, self.given.language]
        return check_languages(
            self.given,
            dict(zip(self._codes, self.models, strict=True)),
            self.call.limits,
            self.call.count_scored,
            dictionaries_of_languages(dictionaries, codes),
            self._errors,
        )

    @override
    def reply(self, result: LanguageToolReply) -> Iterator[bytes]:
        return reply_pieces(result, matches=16 * len(result.matches))
