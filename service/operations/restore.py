"""Restoration of capitals and punctuation in texts, such as the output of a recogniser."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import Field
from typing_extensions import override

from models.calls import Work
from models.errors import DomainError, InputError
from models.files import count_words
from models.language_model import is_lookup
from service.hosting.loaded_model import LoadedModel
from service.operations.operation import Call, Cost, LinesOperation
from service.schemas import with_examples
from service.schemas.replies import RestoredTextResult, RestoreReply, to_json
from service.schemas.wire import ModelRequest, WireModel, parse_json, parse_lines

MAX_WORDS = 20_000
"""Maximum words of a text."""


_FORMS_PER_TOKEN = 40
"""Forms of a word, each with any mark and end of sentence, among which restoration chooses."""


class RestoreSettings(ModelRequest):
    """Settings of a restoration."""

    words: bool = False
    """True to tell of each word where it stands, how it is written, and how sure that is."""
    one_per_line: bool = False
    """True if each line of a text is one sentence; otherwise the model decides where sentences end."""


class RestoreRequest(RestoreSettings):
    """Restore capitals and punctuation."""

    model_config = with_examples(
        {"texts": ["return the list if the key is not found raise an error"], "words": True}
    )

    texts: list[str] = Field(min_length=1)
    """Texts, each of at most 20,000 words; their capitals and marks are kept."""


class RestoreLine(WireModel):
    """A text."""

    model_config = with_examples(
        {"text": "raise an error if the key is not found"}, {"id": "2", "text": "return a list"}
    )

    text: str
    """A text of at most 20,000 words."""
    id: str | None = None
    """Client's id of the text, echoed in the reply."""


class RestoreItem(NamedTuple):
    """A text to restore, the client's id of it, and the number of its words."""

    name: str | None
    text: str
    num_words: int


def _item(name: str | None, text: str, param: str) -> RestoreItem:
    if (num_words := count_words(text)) > MAX_WORDS:
        raise InputError.of(param, f"has {num_words} words; at most {MAX_WORDS} are accepted")
    return RestoreItem(name, text, num_words)


def make_restorer(loaded: LoadedModel) -> None:
    """Build a model's restorer once, and load compiled code.

    Raises:
        UnsupportedError: see `Restorer.of`.
    """
    from models.restoration import Restorer

    loaded.derived(Restorer.of)


def restoration_cost(loaded: LoadedModel, num_tokens: int) -> Cost:
    """Return the cost of restoring that many tokens."""
    work = _FORMS_PER_TOKEN * num_tokens
    return Cost(reread=work) if is_lookup(loaded.model) else Cost(predicted=work)


class Restore(LinesOperation[RestoreItem, RestoredTextResult]):
    """Restore capitals and punctuation in texts that have neither.

    The model must have been trained on text with both, such as by `gramophone train --for restore`. With
    `Content-Type: application/x-ndjson`, each line of the body is an object with `text` and optionally `id`; options
    are in the query string. The reply has one line per text, in order: a result, or `{"error": …}`. If the service
    fails midway, the last line is an error.
    """

    request, settings = RestoreRequest, RestoreSettings

    def __init__(self, call: Call, given: RestoreSettings) -> None:
        self.given, self.slots = given, given.slots
        super().__init__(call, call.resolve(given.model))
        self.items = []
        if isinstance(given, RestoreRequest):
            call.limits.check_count(len(given.texts), "texts")
            self.items = [_item(None, text, f"texts[{number}]") for number, text in enumerate(given.texts)]
            count = sum(item.num_words for item in self.items) if given.words else 0
            instead = "leave words out, or send several requests"
            call.limits.check_entries(count, "words", description=f"{count} words", instead=instead)

    @override
    def prepare(self) -> Iterator[Callable[[], Any]]:
        yield from super().prepare()
        yield lambda: make_restorer(self.models[0])

    @override
    def cost(self) -> Cost:
        read = self.call.num_tokens
        return restoration_cost(self.models[0], read)._replace(read=read, entries=read)

    @override
    def parse_lines(self, body: bytes, form: str) -> Iterator[RestoreItem | InputError]:
        def item(line: bytes) -> RestoreItem:
            given = parse_json(RestoreLine, line)
            return _item(given.id, given.text, "text")

        return parse_lines(body, item)

    @override
    def answer(self, items: Sequence[RestoreItem]) -> Work[Any, Sequence[RestoredTextResult | DomainError]]:
        from models.restoration import Restorer, restore, restored_text

        loaded, results = self.models[0], list[RestoredTextResult | DomainError]()
        restorer = loaded.derived(Restorer.of)
        for item in items:
            words = yield from restore(restorer, item.text, one_per_line=self.given.one_per_line)
            self.call.count_scored(loaded, len(words))
            written = restored_text(item.text, words)
            results.append(RestoredTextResult(item.name, written, words if self.given.words else []))
        return results

    @override
    def reply(self, result: Any) -> Iterator[bytes]:
        yield to_json(RestoreReply(self.address, []))[:-2]
        for number, one in enumerate(result):
            yield (b"," if number else b"") + to_json(one)
        yield b"]}"

    @override
    def line(self, result: RestoredTextResult) -> Iterable[bytes]:
        return [to_json(result)]
