"""Worked examples in the OpenAPI document.

Requests stand with the schemas, as `examples`. Replies are those of the default models, recorded in a file beside this
one by `python -m tests.openapi_examples REGISTRY`; a test asks them all again.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from models.errors import (
    DeadlineExceededError,
    InvalidInputError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    UnsupportedParameterError,
)
from models.reranking.formats.table import format_name_of_media_type
from models.reranking.formats.writing import format_lists
from models.reranking.lists import Candidate, CandidateList
from service.routes.errors import error_body, error_json
from service.routes.openapi_lines import LINES_TYPE
from service.schemas.replies import ErrorBody

Json = dict[str, Any]
RECORDED_REPLIES = Path(__file__).with_name("openapi_replies.json")
"""Replies by operation, media type and the name of the request's example."""

_SCHEMAS = "#/components/schemas/"
_EXAMPLE_LISTS = (
    CandidateList(
        "utt-1",
        "",
        (
            Candidate("return a knew list", {"am": -12.1}),
            Candidate("return a new list", {"am": -12.6}),
        ),
    ),
)


_NO_KEY = ErrorBody(
    "a key is needed, as `Authorization: Bearer KEY`", "authentication_error", None, "invalid_api_key"
)
_EXAMPLE_ERRORS = (
    _NO_KEY,
    *map(
        error_body,
        (
            InvalidInputError("top_k is 0: input should be greater than or equal to 1", parameter="top_k"),
            UnsupportedParameterError(
                "model backward@1 reads from right to left; it scores and re-ranks, but cannot tell what comes next",
                parameter="model",
            ),
            ModelNotFoundError("there is no model 'nobody'; this service has: lstm@1, mixture@1, ngram@1"),
            OverloadedError("1024 requests are queued or under way, as many as this service takes"),
            NotReadyError("model mixture@1 is still being loaded"),
            DeadlineExceededError("the request was not done within its 100 ms"),
        ),
    ),
)
ERROR_EXAMPLES: Json = {str(body.code): {"value": json.loads(error_json(body))} for body in _EXAMPLE_ERRORS}
"""Errors that any operation may answer, by their codes."""

_ERROR_CODES = {
    "4XX": ("invalid_value", "unsupported_parameter", "invalid_api_key", "model_not_found", "overloaded"),
    "5XX": ("not_ready", "deadline_exceeded"),
}


def add_examples(key: str, operation: Json, schemas: Json) -> None:
    """Put examples beside the schemas of an operation's body, reply and errors.

    Args:
        key: method and path, such as `POST /v1/score`.
        operation: as it is described so far; changed.
        schemas: of all bodies, by name.
    """
    for media_type, body in operation.get("requestBody", {}).get("content", {}).items():
        body["examples"] = _request_examples(media_type, body["schema"], schemas)
    for media_type, recorded in _recorded_replies().get(key, {}).items():
        answered = operation["responses"]["200"]["content"].get(media_type)
        if answered is not None:
            answered["examples"] = {name: {"value": value} for name, value in recorded.items()}
    for status, codes in _ERROR_CODES.items():
        refused = operation["responses"][status]["content"]["application/json"]
        refused["examples"] = {code: {"$ref": f"#/components/examples/{code}"} for code in codes}


def _request_examples(media_type: str, schema: Json, schemas: Json) -> Json:
    """The examples of a body by name: `example`, `example-2`, …; lines are one example together."""
    if "$ref" not in schema:
        name = format_name_of_media_type(media_type)
        return {"example": {"value": "".join(format_lists(_EXAMPLE_LISTS, name))}} if name else {}
    given = schemas[schema["$ref"].removeprefix(_SCHEMAS)].get("examples", [])
    if media_type == LINES_TYPE:
        return {"example": {"value": "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in given)}}
    return {
        f"example-{number}" if number > 1 else "example": {"value": one}
        for number, one in enumerate(given, 1)
    }


@cache
def _recorded_replies() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    found: Mapping[str, Mapping[str, Mapping[str, Any]]] = json.loads(
        RECORDED_REPLIES.read_text(encoding="utf-8")
    )
    return found
