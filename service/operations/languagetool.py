"""LanguageTool's HTTP API over the check of texts: form fields, texts with markup, rules.

Source: the API's description, https://languagetool.org/http-api/.
"""

import importlib.metadata
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, ValidationError
from typing_extensions import override

from models.calls import Work, map_in_steps
from models.errors import FormatError, InputError
from models.scoring.model_weights import WeightedModel
from models.text_model import TextModel
from service.operations.check import DEFAULT_THRESHOLD, CheckRequest, TextCheck, check
from service.operations.operation import MAX_WORD_LISTS, Call
from service.schemas import with_examples
from service.schemas.suggestions import LanguageToolMatch, LanguageToolReply, TextIssue
from service.schemas.wire import WireModel, either, invalid_input, parse_form, parse_json, reply_pieces

# ruff: noqa: N815 - LanguageTool's names

AUTO = "auto"
_PICKY_THRESHOLD = 0.3
_CONTEXT_CHARS = 40
_SENTENCE_CHARS = 240
"""Maximum characters of a sentence on each side of the error: each match repeats them."""
_SENTENCE_END = re.compile(r"\n|[.!?…][\"')\]’”»]*\s|[。！？]")  # noqa: RUF001 - marks of other scripts
_MAX_REPLACEMENTS = 10
_MAX_PARTS = 1 << 16
_PART_CHARS = 1 << 12
"""Maximum characters of a text between known positions."""

Ids = Annotated[str, StringConstraints(max_length=1 << 16)]
"""Ids separated by commas."""

_SOFTWARE: dict[str, str | int | bool] = {
    "name": "Gramophone",
    "version": importlib.metadata.version("gramophone-lm"),
    "buildDate": "",
    "apiVersion": 1,
    "premium": False,
    "status": "",
}


class _Lenient(WireModel):
    """A body whose other fields are ignored, such as metaData of the browser add-on."""

    model_config = ConfigDict(extra="ignore")


class Annotation(_Lenient):
    """A part of a text with markup: either text or markup."""

    text: str | None = None
    markup: str | None = None
    interpretAs: str = ""
    _one_of = either("text", "markup")


class _AnnotatedBody(_Lenient):
    text: str | None = None
    annotation: list[Any] | None = Field(None, max_length=_MAX_PARTS)
    _one_of = either("text", "annotation")


class LanguageToolRequest(_Lenient):
    """Find probable errors, with LanguageTool's form fields; its other fields are ignored."""

    model_config = with_examples(
        {"text": "Return the lenght of the string.", "language": "auto"}, extra="ignore"
    )
    _one_of = either("text", "data")

    text: str | None = None
    """Text to check; each line is a sentence."""
    data: str | None = None
    """Text instead in JSON: `{"text": "one"}`, or with markup, such as
    `{"annotation": [{"text": "one"}, {"markup": "<p>", "interpretAs": "\\n"}]}`."""
    language: str
    """Code of a language, such as `en-US`, or `auto` for all: the models are weighted word by word."""
    disabledRules: Ids = ""
    """Ids of rules to leave out, separated by commas."""
    disabledCategories: Ids = ""
    """Ids of categories to leave out, separated by commas."""
    enabledRules: Ids = ""
    """With `enabledOnly`: ids of the rules to use, separated by commas."""
    enabledCategories: Ids = ""
    """With `enabledOnly`: ids of the categories to use, separated by commas."""
    enabledOnly: Literal["true", "yes", "false", "no"] = "false"
    """`true` or `yes` uses only the enabled rules and categories."""
    mode: Literal["all", "allButTextLevelOnly", "textLevelOnly", "batch"] = "all"
    """`textLevelOnly` uses only rules about whole texts, of which there are none; the other modes use all rules."""
    level: Literal["default", "picky"] = "default"
    """`picky` also reports errors that are less probable: from 0.3 on instead of 0.5."""

    def document(self) -> Work[Any, "AnnotatedText"]:
        """Return the text to check.

        Raises:
            InputError: the text with markup is not of LanguageTool's form.
        """
        if self.data is None:
            return AnnotatedText([Annotation(text=self.text)])
        document = AnnotatedText()

        def add(part: tuple[int, Any]) -> None:
            try:
                document.add(Annotation.model_validate(part[1]))
            except ValidationError as error:
                raise InputError(f"annotation[{part[0]}]: {invalid_input(error)}") from None

        try:
            body = parse_json(_AnnotatedBody, self.data.encode())
            parts = [{"text": body.text}] if body.annotation is None else body.annotation
            yield from map_in_steps(enumerate(parts), add, size=lambda _: 0)
        except InputError as error:
            raise InputError(f"data: {error}", param="data") from None
        return document

    def allows(self, rule: str, category: str) -> bool:
        """Return true unless a rule of a category is left out."""

        def has(rules: str, categories: str) -> bool:
            return f",{rule}," in f",{rules}," or f",{category}," in f",{categories},"

        if self.mode == "textLevelOnly" or has(self.disabledRules, self.disabledCategories):
            return False
        return self.enabledOnly in {"false", "no"} or has(self.enabledRules, self.enabledCategories)


class AnnotatedText:
    """Text without its markup, and its characters' positions in the text with markup.

    Args:
        parts: first parts.
    """

    def __init__(self, parts: Iterable[Annotation] = ()) -> None:
        self._texts: list[str] = []
        # of each: start, offset, length of the markup
        self._places: list[tuple[int, int, int | None]] = []
        self._start = self._offset = 0
        for part in parts:
            self.add(part)

    def add(self, part: Annotation) -> None:
        """Append a part; a long text becomes several, to find a position in it quickly."""
        text = part.interpretAs if part.text is None else part.text
        length = None if part.markup is None else utf16_length(part.markup)
        for begin in range(0, len(text), _PART_CHARS if length is None else max(len(text), 1)):
            piece = text[begin : begin + _PART_CHARS] if length is None else text
            self._texts.append(piece)
            self._places.append((self._start, self._offset, length))
            self._start += len(piece)
            self._offset += utf16_length(piece) if length is None else 0
        self._offset += length or 0

    @cached_property
    def plain(self) -> str:
        """Text to check; nothing can be added later."""
        return "".join(self._texts)

    def offset(self, position: int, *, end: bool = False) -> int:
        """Return the offset with markup, in UTF-16 code units, of a position in `plain`."""
        number = bisect_right(self._places, position - end, key=itemgetter(0)) - 1
        start, offset, length = self._places[number]
        return offset + (utf16_length(self.plain[start:position]) if length is None else end * length)


def utf16_length(text: str) -> int:
    """Return the number of UTF-16 code units of a text."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _rule(kind: str, code: str) -> dict[str, Any]:
    """Return the rule of a type of issues in a language."""
    if kind == "unknown_word":
        rule, description = f"MORFOLOGIK_RULE_{code.upper().replace('-', '_')}", "Spelling mistake"
        category = {"id": "TYPOS", "name": "Possible Typo"}
    else:
        rule, description = "CONFUSION_RULE", "Wrong word"
        category = {"id": "CONFUSED_WORDS", "name": "Commonly Confused Words"}
    return {"id": rule, "description": description, "issueType": "misspelling", "category": category}


def _match(document: AnnotatedText, issue: TextIssue, rule: dict[str, Any]) -> LanguageToolMatch:
    """Convert an issue."""
    text, is_unknown = document.plain, issue.type == "unknown_word"
    offset = document.offset(issue.start)
    begin = max(0, issue.start - _CONTEXT_CHARS)
    end = issue.end + _CONTEXT_CHARS
    before, after = ("..." if begin else ""), ("..." if end < len(text) else "")
    return LanguageToolMatch(
        message="Possible spelling mistake found." if is_unknown else f"“{issue.text}” is improbable here.",
        shortMessage=rule["description"],
        replacements=[{"value": one.text} for one in issue.suggestions],
        offset=offset,
        length=document.offset(issue.end, end=True) - offset,
        context={
            "text": before + text[begin:end].replace("\n", " ") + after,
            "offset": len(before) + utf16_length(text[begin : issue.start]),
            "length": utf16_length(issue.text),
        },
        sentence=_sentence(text, issue.start, issue.end),
        type={"typeName": "UnknownWord" if is_unknown else "Other"},
        rule=rule,
    )


def _sentence(text: str, start: int, end: int) -> str:
    """Return the sentence around an error, up to `_SENTENCE_CHARS` on each side."""
    first, last = max(0, start - _SENTENCE_CHARS), end + _SENTENCE_CHARS
    for found in _SENTENCE_END.finditer(text, first, start):
        first = found.end()
    following = _SENTENCE_END.search(text, end, last)
    return text[first : following.end() if following else last].strip()


class LanguageToolCheck(TextCheck[LanguageToolReply]):
    """Find probable errors, with LanguageTool's API, for its existing clients: editors, browsers, LibreOffice.

    Positions count UTF-16 code units. The models of the languages are those of `GRAMOPHONE_LANGUAGES`, the dictionaries
    those of `GRAMOPHONE_DICTIONARIES`, and stored word lists of the language. GET has the fields in the query string.
    """

    request = LanguageToolRequest

    def __init__(self, call: Call, given: LanguageToolRequest) -> None:
        self.given, languages = given, call.resources.languages
        code, self._codes = given.language, list(languages)
        if code != AUTO:  # the named language, else one of another country
            for same in (str.lower, lambda name: name.lower().partition("-")[0]):
                self._codes = [one for one in languages if same(one) == same(code.replace("_", "-"))][:1]
                if self._codes:
                    break
            else:
                known = ", ".join(languages)
                raise InputError.of("language", f"is {code[:80]!r}; this service checks {known}")
        super().__init__(call, *(call.resolve(languages[code]) for code in self._codes))

    @override
    @classmethod
    def parse(cls, body: bytes) -> LanguageToolRequest:
        return parse_form(LanguageToolRequest, body)

    @override
    def _read_documents(self) -> None:
        codes = {code.lower().replace("_", "-") for code in (*self._codes, self.given.language)}
        languages = codes | {code.partition("-")[0] for code in codes}
        lists = (one.words for one in self.call.resources.word_lists.all(self.call.owner))
        found = [one for one in lists if (one.info.language or "").lower() in languages]
        self.dictionary = found[:MAX_WORD_LISTS]
        super()._read_documents()

    @override
    def run(self) -> Work[Any, LanguageToolReply]:
        given, codes = self.given, [*self._codes, self.given.language]
        document = yield from given.document()
        threshold = _PICKY_THRESHOLD if given.level == "picky" else DEFAULT_THRESHOLD
        text = "" if given.mode == "textLevelOnly" and len(self.models) == 1 else document.plain
        wire = CheckRequest(text=text, threshold=threshold, max_suggestions=_MAX_REPLACEMENTS)
        by_address: dict[str, tuple[str, TextModel]] = {}  # languages may share a model
        for code, loaded in zip(self._codes, self.models, strict=True):
            by_address.setdefault(loaded.address, (code, loaded))
        models = [WeightedModel(loaded) for _, loaded in by_address.values()]
        wanted = {code.lower().replace("_", "-") for code in codes}  # such as en_US for en-US
        hunspell = tuple(
            one
            for name, one in self.call.resources.dictionaries.items()
            if name.lower().replace("_", "-") in wanted and not isinstance(one, FormatError)
        )
        settings = None, self.call.limits, self.dictionary, hunspell, self.errors
        reply, num_tokens = yield from check(models, wire, *settings)
        for weighted, number in zip(models, num_tokens, strict=True):
            self.call.count_scored(weighted.loaded, number)
        best, _ = by_address[reply.model]
        rules = {kind: _rule(kind, best) for kind in ("unknown_word", "real_word")}
        allowed = {
            kind: rule for kind, rule in rules.items() if given.allows(rule["id"], rule["category"]["id"])
        }
        matches = yield from map_in_steps(
            [issue for issue in reply.issues if issue.type in allowed],
            lambda issue: _match(document, issue, allowed[issue.type]),
            size=lambda issue: len(issue.text) + 2 * _SENTENCE_CHARS,
        )
        asked = best if given.language == AUTO else given.language
        confidence = 1.0 if reply.weights is None else reply.weights[reply.model]
        return LanguageToolReply(
            software=_SOFTWARE,
            warnings={"incompleteResults": False},
            language={
                "name": asked,
                "code": asked,
                "detectedLanguage": {"name": best, "code": best, "confidence": confidence},
            },
            matches=matches,
        )

    @override
    def reply(self, result: LanguageToolReply) -> Iterator[bytes]:
        return reply_pieces(result, matches=16 * len(result.matches))
