"""LanguageTool's HTTP API over the check of texts: form fields, texts with markup, rules.

Source: the API's description, https://languagetool.org/http-api/.
"""

import importlib.metadata
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from models.checking.error_model import ErrorTable
from models.errors import InvalidInputError
from models.reranking.candidates import map_in_steps
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.schemas.suggestions import (
    LanguageToolLanguage,
    LanguageToolMatch,
    LanguageToolReply,
    TextIssue,
)
from service.schemas.wire import WireModel, parse_json
from service.use_cases.check import DEFAULT_THRESHOLD, CheckRequest, check
from service.use_cases.inputs import Limits, WordLists
from service.use_cases.model_weights import WeightedModel

# ruff: noqa: N815 - LanguageTool's names

AUTO = "auto"
_PICKY_THRESHOLD = 0.3
_CONTEXT_CHARACTERS = 40
_MAX_REPLACEMENTS = 10
_SURROGATE_PAIRS = re.compile("[\U00010000-\U0010ffff]")
"""Characters of two UTF-16 code units."""

_SOFTWARE: dict[str, str | int | bool] = {
    "name": "Gramophone",
    "version": importlib.metadata.version("gramophone-lm"),
    "buildDate": "",
    "apiVersion": 1,
    "premium": False,
    "status": "",
}


class Annotation(WireModel):
    """A part of a text with markup: either text or markup; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    text: str | None = None
    markup: str | None = None
    interpretAs: str = ""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.text is None) == (self.markup is None):
            raise PydanticCustomError("one_of", "give either text or markup")
        return self


class _AnnotatedBody(WireModel):
    model_config = ConfigDict(extra="ignore")  # such as metaData of the browser add-on

    text: str | None = None
    annotation: list[Annotation] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.text is None) == (self.annotation is None):
            raise PydanticCustomError("one_of", "give either text or annotation")
        return self


class LanguageToolRequest(WireModel):
    """Find probable errors, with LanguageTool's form fields; its other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"examples": [{"text": "Return the lenght of the string.", "language": "auto"}]},
    )

    text: str | None = None
    """Text to check; each line is a sentence."""
    data: str | None = None
    """Text instead in JSON: `{"text": "one"}`, or with markup, such as
    `{"annotation": [{"text": "one"}, {"markup": "<p>", "interpretAs": "\\n"}]}`."""
    language: str
    """Code of a language, such as `en-US`, or `auto` for all: the models are weighted word by word."""
    disabledRules: str = ""
    """Ids of rules to leave out, separated by commas."""
    disabledCategories: str = ""
    """Ids of categories to leave out, separated by commas."""
    enabledRules: str = ""
    """With `enabledOnly`: ids of the rules to use, separated by commas."""
    enabledCategories: str = ""
    """With `enabledOnly`: ids of the categories to use, separated by commas."""
    enabledOnly: Literal["true", "false"] = "false"
    """`true` uses only the enabled rules and categories."""
    level: Literal["default", "picky"] = "default"
    """`picky` also reports errors that are less probable: from 0.3 on instead of 0.5."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.text is None) == (self.data is None):
            raise PydanticCustomError("one_of", "give either text or data")
        return self

    def document(self) -> "AnnotatedText":
        """Return the text to check.

        Raises:
            InvalidInputError: the text with markup is not of LanguageTool's form.
        """
        if self.data is None:
            return AnnotatedText([Annotation(text=self.text)])
        try:
            body = parse_json(_AnnotatedBody, self.data.encode())
        except InvalidInputError as error:
            raise InvalidInputError(f"data: {error}", parameter="data") from None
        return AnnotatedText([Annotation(text=body.text)] if body.annotation is None else body.annotation)

    def allows(self, rule: str, category: str) -> bool:
        """Return true if a rule of a category is not left out."""

        def has(rules: str, categories: str) -> bool:
            return rule in rules.split(",") or category in categories.split(",")

        if has(self.disabledRules, self.disabledCategories):
            return False
        return self.enabledOnly == "false" or has(self.enabledRules, self.enabledCategories)


class AnnotatedText:
    """Text without its markup, and the positions of its characters in the text with markup.

    Attributes:
        plain: text to check.
    """

    def __init__(self, parts: Sequence[Annotation]) -> None:
        self._parts = [part for part in parts if part.markup is None or part.interpretAs]
        texts = [part.interpretAs if part.text is None else part.text for part in self._parts]
        self.plain = "".join(texts)
        self._pairs = [match.start() for match in _SURROGATE_PAIRS.finditer(self.plain)]
        self._starts, self._offsets, start, offset = list[int](), list[int](), 0, 0
        for part in parts:
            if part.markup is None or part.interpretAs:
                self._starts.append(start)
                self._offsets.append(offset)
                start += len(part.interpretAs if part.text is None else part.text)
            offset += utf16_length(part.markup if part.text is None else part.text)

    def offset(self, position: int, *, end: bool = False) -> int:
        """Return the offset with markup, in UTF-16 code units, of a position in `plain`, such as the end of a word."""
        number = bisect_right(self._starts, position - end) - 1
        part = self._parts[number]
        if part.text is not None:
            start = self._starts[number]
            num_pairs = bisect_left(self._pairs, position) - bisect_left(self._pairs, start)
            return self._offsets[number] + position - start + num_pairs
        return self._offsets[number] + (utf16_length(part.markup) if end else 0)


def utf16_length(text: str | None) -> int:
    """Return the number of UTF-16 code units of a text."""
    return len((text or "").encode("utf-16-le", "surrogatepass")) // 2


def supported_languages(languages: Mapping[str, str | None]) -> list[LanguageToolLanguage]:
    """Return the languages of a service, given the address of the model of each."""
    return [LanguageToolLanguage(code, code.partition("-")[0], code) for code in languages]


def choose_languages(languages: Mapping[str, str | None], code: str) -> list[str]:
    """Return the languages to check a text in: all for `auto`, else the named one, or one that differs in the country.

    Raises:
        InvalidInputError: the service has no such language.
    """
    if code == AUTO:
        return list(languages)
    for same in (str.lower, lambda name: name.lower().partition("-")[0]):
        if found := [known for known in languages if same(known) == same(code.replace("_", "-"))]:
            return found[:1]
    raise InvalidInputError(
        f"language is {code[:80]!r}; this service checks {', '.join(languages)}", parameter="language"
    )


def check_languages(
    request: LanguageToolRequest,
    loaded: Mapping[str, LoadedModel],
    limits: Limits,
    count: Callable[[LoadedModel, int], None],
    word_lists: WordLists,
    errors: Mapping[str, ErrorTable | None],
) -> Work[Any, LanguageToolReply]:
    """Check a text with the models of some languages, weighted by how well they predict it; a use case.

    Args:
        request: the request.
        loaded: models by language.
        limits: limits of one request.
        count: counts the tokens that a model has scored.
        word_lists: dictionaries of the languages.
        errors: edits in misspellings, by the models' addresses.

    Raises:
        InvalidInputError: the markup is invalid, or a line is too long.
        UnsupportedParameterError: a model reads backward.
    """
    document = request.document()
    threshold = _PICKY_THRESHOLD if request.level == "picky" else DEFAULT_THRESHOLD
    wire = CheckRequest(text=document.plain, threshold=threshold, max_suggestions=_MAX_REPLACEMENTS)
    codes: dict[str, str] = {}  # by address: languages may share a model
    for code, model in loaded.items():
        codes.setdefault(model.address, code)
    models = [WeightedModel(loaded[code]) for code in codes.values()]
    reply, num_tokens = yield from check(models, wire, None, limits, word_lists, errors)
    for weighted, number in zip(models, num_tokens, strict=True):
        count(weighted.loaded, number)
    best = codes[reply.model]
    matches = yield from map_in_steps(
        reply.issues,
        lambda issue: _match(document, issue, best),
        size=lambda issue: len(issue.text),
    )
    asked = best if request.language == AUTO else request.language
    confidence = 1.0 if reply.weights is None else reply.weights[reply.model]
    return LanguageToolReply(
        software=_SOFTWARE,
        warnings={"incompleteResults": False},
        language={
            "name": asked,
            "code": asked,
            "detectedLanguage": {"name": best, "code": best, "confidence": confidence},
        },
        matches=[
            match for match in matches if request.allows(match.rule["id"], match.rule["category"]["id"])
        ],
    )


def _match(document: AnnotatedText, issue: TextIssue, code: str) -> LanguageToolMatch:
    """Convert an issue."""
    text = document.plain
    offset, line_end = document.offset(issue.start), text.find("\n", issue.end)
    begin, end = max(0, issue.start - _CONTEXT_CHARACTERS), issue.end + _CONTEXT_CHARACTERS
    before, after = ("..." if begin else ""), ("..." if end < len(text) else "")
    if issue.type == "unknown_word":
        rule = f"MORFOLOGIK_RULE_{code.upper().replace('-', '_')}"
        message, short = "Possible spelling mistake found.", "Spelling mistake"
        category = {"id": "TYPOS", "name": "Possible Typo"}
    else:
        rule, short = "CONFUSION_RULE", "Wrong word"
        message = f"“{issue.text}” is improbable here."
        category = {"id": "CONFUSED_WORDS", "name": "Commonly Confused Words"}
    return LanguageToolMatch(
        message=message,
        shortMessage=short,
        replacements=[{"value": suggestion.text} for suggestion in issue.suggestions],
        offset=offset,
        length=document.offset(issue.end, end=True) - offset,
        context={
            "text": before + text[begin:end].replace("\n", " ") + after,
            "offset": len(before) + utf16_length(text[begin : issue.start]),
            "length": utf16_length(issue.text),
        },
        sentence=text[text.rfind("\n", 0, issue.start) + 1 : line_end if line_end >= 0 else None],
        type={"typeName": "UnknownWord" if issue.type == "unknown_word" else "Other"},
        rule={"id": rule, "description": short, "issueType": "misspelling", "category": category},
    )
