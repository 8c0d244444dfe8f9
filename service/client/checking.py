"""The client's side of /v1/check and /v1/quality: what is asked, and how lines of answers are read."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from pydantic import TypeAdapter

from service.client.calls import Call, lines_call, result_or_error
from service.schemas.check_replies import CheckReply
from service.schemas.quality_replies import QualityReply, TextQualityResult
from service.schemas.replies import ErrorBody, ErrorReply

_CHECK = TypeAdapter(CheckReply)
_QUALITY = TypeAdapter(QualityReply)
_QUALITY_LINE: TypeAdapter[TextQualityResult | ErrorReply] = TypeAdapter(TextQualityResult | ErrorReply)

NamedText: TypeAlias = str | Mapping[str, Any]
"""A text, or a mapping with `text` and `id`."""


class _Span(TypedDict):
    start: int
    end: int
    suggestions: Sequence[str | Mapping[str, Any]]


class CheckOptions(TypedDict, total=False):
    """How a text is checked; see POST /v1/check."""

    model: str
    threshold: float
    precision: float
    max_suggestions: int
    candidates: Sequence[_Span]
    dictionary: Sequence[str]
    error_rate: float
    max_edits: int
    timeout_ms: int


class QualityOptions(TypedDict, total=False):
    """With which models texts are scored; see POST /v1/quality."""

    model: str
    against: str


def check_call(text: str, options: CheckOptions) -> Call[CheckReply]:
    """POST /v1/check."""
    return Call("POST", "/v1/check", _CHECK, {"text": text, **options})


def quality_call(texts: Sequence[NamedText], options: QualityOptions) -> Call[QualityReply]:
    """POST /v1/quality."""
    return Call("POST", "/v1/quality", _QUALITY, {"texts": texts, **options})


def quality_lines_call(
    items: Iterable[Mapping[str, Any]], options: QualityOptions
) -> Call[TextQualityResult | ErrorReply]:
    """POST /v1/quality with a line for each item."""
    return lines_call("/v1/quality", _QUALITY_LINE, items, options)


def read_quality_line(line: str) -> TextQualityResult | ErrorBody:
    """What a line of the answer says."""
    return result_or_error(_QUALITY_LINE.validate_json(line))
