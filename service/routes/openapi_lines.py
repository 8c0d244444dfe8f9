"""How bodies and replies that are no single JSON value look in the OpenAPI document: lines, events, raw numbers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from service.schemas.quality import QualityLine, QualityQuery
from service.schemas.quality_replies import TextQualityResult
from service.schemas.replies import RankedListResult, SequenceScoreResult
from service.schemas.rerank import CandidateListIn, RerankSettings
from service.schemas.score import ScoreLine, ScoreQuery

Json = dict[str, Any]
JSON_TYPE, LINES_TYPE = "application/json", "application/x-ndjson"
EVENTS_TYPE, BINARY_TYPE = "text/event-stream", "application/octet-stream"

_SCHEMAS = "#/components/schemas/"
_ERROR_REFERENCE = {"$ref": f"{_SCHEMAS}ErrorReply"}


class LinesOperation(NamedTuple):
    """What an operation reads and answers line by line.

    Attributes:
        request: each line of the body.
        reply: each line of the reply that is no error.
        options: whose fields stand in the query string; what they mean is told by the JSON body's.
        pairs: options that are objects in JSON, and how they are written in a query string.
    """

    request: type[BaseModel]
    reply: type
    options: type[BaseModel]
    pairs: Mapping[str, str] = {}


LINES_OPERATIONS: Mapping[str, LinesOperation] = {
    "/v1/score": LinesOperation(ScoreLine, SequenceScoreResult, ScoreQuery),
    "/v1/rerank": LinesOperation(
        CandidateListIn,
        RankedListResult,
        RerankSettings,
        {"weights": "lm=0.5,am=1", "mixture": "ngram=0.3,lstm=0.7", "models": "old=ngram"},
    ),
    "/v1/quality": LinesOperation(QualityLine, TextQualityResult, QualityQuery),
}
"""The operations that take lines, by path."""

_LIST_MEDIA_TYPES = (
    "text/x-moses-nbest",
    "text/x-srilm-nbest",
    "text/x-kaldi-nbest",
    "application/x-mlm-scoring+json",
    "application/x-hyporadise+json",
)
LIST_MEDIA_TYPES: Mapping[str, tuple[str, ...]] = {"/v1/rerank": _LIST_MEDIA_TYPES}
"""Media types of other programs' lists, which are answered as lines, by path."""

_BINARY_HEADERS = {
    "x-shape": {"description": "Rows and columns, such as `2,4000`.", "schema": {"type": "string"}},
    "x-model": {"description": "Which version it was.", "schema": {"type": "string"}},
}


def add_media_types(path: str, operation: Json, schemas: Json) -> None:
    """Tell what an operation's body and reply are in media types other than JSON.

    Args:
        path: of the operation.
        operation: as the framework describes it; changed.
        schemas: of all bodies and replies, by name.
    """
    reply = operation["responses"]["200"]
    content = reply["content"]
    if content[JSON_TYPE]["schema"].get("type") == "string":  # a file, of the media types beside it
        del content[JSON_TYPE]
        content.update({media_type: {"schema": _file(media_type)} for media_type in content})
    kinds = LINES_OPERATIONS.get(path)
    if kinds is not None:
        _add_lines(operation, kinds, schemas)
        content[LINES_TYPE] = {"schema": _one_of(kinds.reply.__name__, "Each line.")}
    for media_type in LIST_MEDIA_TYPES.get(path, ()):
        operation["requestBody"]["content"][media_type] = {"schema": {"type": "string"}}
    if EVENTS_TYPE in content:
        each = content[JSON_TYPE]["schema"]["$ref"].removeprefix(_SCHEMAS)
        content[EVENTS_TYPE] = {
            "schema": _one_of(each, "The data of each event but the last, which is `[DONE]`.")
        }
    if BINARY_TYPE in content:
        content[BINARY_TYPE] = {
            "schema": {
                "type": "string",
                "format": "binary",
                "description": "Little-endian float32, row after row.",
            }
        }
        reply["headers"] = _BINARY_HEADERS


def _file(media_type: str) -> Json:
    return {"type": "string"} if media_type.startswith("text/") else {"type": "string", "format": "binary"}


def _one_of(name: str, description: str) -> Json:
    return {"anyOf": [{"$ref": _SCHEMAS + name}, _ERROR_REFERENCE], "description": description}


def _add_lines(operation: Json, kinds: LinesOperation, schemas: Json) -> None:
    """Tell that a body may be lines, and that options then stand in the query string."""
    content = operation["requestBody"]["content"]
    body = schemas[content[JSON_TYPE]["schema"]["$ref"].removeprefix(_SCHEMAS)]
    content[LINES_TYPE] = {"schema": {"$ref": _SCHEMAS + kinds.request.__name__, "description": "Each line."}}
    operation["parameters"] = [
        *operation.get("parameters", ()),
        *(
            _query(name, body["properties"][name], kinds.pairs.get(name))
            for name in kinds.options.model_fields
        ),
    ]


def _query(name: str, field: Json, pairs: str | None) -> Json:
    """A field of the JSON body as a parameter of lines."""
    schema = {key: value for key, value in field.items() if key not in {"description", "title"}}
    told = f"Of lines. {field.get('description', '')}".strip()
    if pairs is not None:
        schema, told = {"type": "string"}, f"{told} Written as `{pairs}`."
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": told,
        "schema": schema,
        "x-only-with": LINES_TYPE,
    }
