"""OpenAPI document: operations, request bodies, media types and examples.

The framework's document is completed with the bodies that routes parse themselves. Example requests
are part of the schemas. Example replies are those of the default models, recorded in the JSON file
beside this module by `python -m tests.support.openapi REGISTRY`; a test repeats all of them.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from models.errors import (
    DeadlineExceededError,
    InvalidInputError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    UnsupportedParameterError,
)
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.reader import format_name_of_media_type
from models.reranking.formats.writer import format_lists
from service.api_errors import error_body, error_json
from service.api_keys import KeyScope
from service.middleware.authentication import AccessTable
from service.schemas.autocomplete import NAME_PATTERN
from service.schemas.check import QualityLine, QualityQuery
from service.schemas.replies import (
    ErrorBody,
    ErrorReply,
    RankedListResult,
    SequenceScoreResult,
    TextQualityResult,
)
from service.schemas.rerank import CandidateListIn, RerankSettings
from service.schemas.score import ScoreLine, ScoreQuery

Json = dict[str, Any]
JSON_TYPE, LINES_TYPE = "application/json", "application/x-ndjson"
EVENTS_TYPE, BINARY_TYPE = "text/event-stream", "application/octet-stream"

_SCHEMAS = "#/components/schemas/"
_ERROR_REFERENCE = {"$ref": f"{_SCHEMAS}ErrorReply"}


class LinesOperation(NamedTuple):
    """Line-by-line request and reply of an operation.

    Attributes:
        request: model of each line of the body.
        reply: model of each line of the reply that is no error.
        options: model of the query string, whose fields are documented in the JSON body's model.
        pairs: examples in a query string of options that are objects in JSON.
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
"""Media types of list formats of other programs, answered as lines, by path."""

_BINARY_HEADERS = {
    "x-shape": {"description": "Rows and columns, such as `2,4000`.", "schema": {"type": "string"}},
    "x-model": {"description": "Which version it was.", "schema": {"type": "string"}},
}


def add_media_types(path: str, operation: Json, schemas: Json) -> None:
    """Add the media types other than JSON to an operation's body and reply.

    Args:
        path: path of the operation.
        operation: description by the framework, changed in place.
        schemas: schemas of all bodies and replies, by name.
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
        reply_name = content[JSON_TYPE]["schema"]["$ref"].removeprefix(_SCHEMAS)
        content[EVENTS_TYPE] = {
            "schema": _one_of(reply_name, "The data of each event but the last, which is `[DONE]`.")
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
    """Add bodies of lines to an operation, with their options in the query string."""
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
    """Convert a field of the JSON body to a query parameter of lines."""
    schema = {key: value for key, value in field.items() if key not in {"description", "title"}}
    description = f"Of lines. {field.get('description', '')}".strip()
    if pairs is not None:
        schema, description = {"type": "string"}, f"{description} Written as `{pairs}`."
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": schema,
        "x-only-with": LINES_TYPE,
    }


RECORDED_REPLIES = Path(__file__).with_name("openapi_replies.json")
"""Recorded replies by operation, media type and name of the request's example."""
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
"""Examples of errors of any operation, by code."""

_ERROR_CODES = {
    "4XX": ("invalid_value", "unsupported_parameter", "invalid_api_key", "model_not_found", "overloaded"),
    "5XX": ("not_ready", "deadline_exceeded"),
}


def add_examples(key: str, operation: Json, schemas: Json) -> None:
    """Add examples to an operation's body, reply and errors.

    Args:
        key: method and path, such as `POST /v1/score`.
        operation: description so far, changed in place.
        schemas: schemas of all bodies, by name.
    """
    for media_type, body in operation.get("requestBody", {}).get("content", {}).items():
        body["examples"] = _request_examples(media_type, body["schema"], schemas)
    for media_type, recorded in _recorded_replies().get(key, {}).items():
        content = operation["responses"]["200"]["content"].get(media_type)
        if content is not None:
            content["examples"] = {name: {"value": value} for name, value in recorded.items()}
    for status, codes in _ERROR_CODES.items():
        error_content = operation["responses"][status]["content"]["application/json"]
        error_content["examples"] = {code: {"$ref": f"#/components/examples/{code}"} for code in codes}


def _request_examples(media_type: str, schema: Json, schemas: Json) -> Json:
    """Return the examples of a body by name: `example`, `example-2`, …; lines form one example."""
    if "$ref" not in schema:
        name = format_name_of_media_type(media_type)
        return {"example": {"value": "".join(format_lists(_EXAMPLE_LISTS, name))}} if name else {}
    examples = schemas[schema["$ref"].removeprefix(_SCHEMAS)].get("examples", [])
    if media_type == LINES_TYPE:
        return {
            "example": {"value": "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in examples)}
        }
    return {
        f"example-{number}" if number > 1 else "example": {"value": value}
        for number, value in enumerate(examples, 1)
    }


@cache
def _recorded_replies() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    replies: Mapping[str, Mapping[str, Mapping[str, Any]]] = json.loads(
        RECORDED_REPLIES.read_text(encoding="utf-8")
    )
    return replies


INTRODUCTION = """\
Small language models over HTTP: what comes next, how probable a text is, which candidate is best.

- **Models** are named `name`, `name@7` or `name@champion`; every reply says which version answered, as
  `name@version`. A request that names none is answered by the default.
- **Log-probabilities** are natural logarithms; a probability of zero is `-9999` and makes a perplexity `null`.
- **Errors** have one shape, `{"error": {"message", "type", "param", "code"}}`; `code` is stable, `param` names the
  field.
- **Keys**: where the service has them, send `Authorization: Bearer KEY`. `/admin/…` always asks for one.
- **Limits**: what is past them is answered 400, 408, 413, 415, 429, 431 or 503, with `Retry-After` where coming back
  helps.
- **Lines**: where a body may be `application/x-ndjson`, options stand in the query string, and each line is answered
  by a line, in order; one that is wrong fails alone, as a line with `error`.
"""
"""Description of the document, in Markdown."""

TAGS: Mapping[str, str] = {
    "Predict": "What comes next: the most probable tokens, or the whole distribution.",
    "Score": "How probable texts are.",
    "Re-rank": "Which of some candidates is best, and weights that tell.",
    "Generate": "Texts that go on.",
    "Complete": "The word that somebody is typing, and what they are used to.",
    "Check": "Words that are probably wrong, and texts that are probably bad.",
    "States": "States of texts, kept for decoders that search.",
    "OpenAI": "OpenAI's contract, for its clients.",
    "Tokenise": "What tokens a text is made of.",
    "Models": "What is served, and what is known of it.",
    "Admin": "Models, aliases and profiles; asks for a key of the scope `admin`.",
    "Health": "Whether the service lives and is ready.",
}
"""Groups of operations, in order, with their descriptions."""

_TAG_OF = {
    "/v1/next-token": "Predict",
    "/v1/score": "Score",
    "/v1/rerank": "Re-rank",
    "/v1/generate": "Generate",
    "/v1/autocomplete": "Complete",
    "/v1/check": "Check",
    "/v1/quality": "Check",
    "/v1/states": "States",
    "/v1/completions": "OpenAI",
    "/tokenize": "Tokenise",
    "/detokenize": "Tokenise",
    "/tokenizer_info": "Tokenise",
    "/v1/models": "Models",
    "/admin": "Admin",
    "/health": "Health",
}
"""Group of operations by prefix of the path."""

_ADDRESS = {"description": "A model: `name`, `name@7` or `name@champion`.", "example": "mixture"}
_USER = {
    "description": "Whose words; a user belongs to the key that made it.",
    "example": "ann",
    "schema": {"type": "string", "pattern": NAME_PATTERN},
}
_PARAMETERS: Mapping[str, Mapping[str, Json]] = {
    "/v1/autocomplete/users/{user}": {"user": _USER},
    "/v1/autocomplete/users/{user}/accepted": {"user": _USER},
    "/v1/models/{address}": {"address": _ADDRESS},
    "/v1/models/{address}/card": {"address": _ADDRESS},
    "/v1/models/{address}/files": {"address": _ADDRESS},
    "/v1/models/{address}/files/{name}": {
        "address": _ADDRESS,
        "name": {"description": "One of the names in the list of files.", "example": "perplexities.png"},
    },
    "/tokenizer_info": {
        "model": {
            **_ADDRESS,
            "description": "`name`, `name@7` or `name@champion`; the default if it is left out.",
        }
    },
    "/admin/profiles/{name}": {"name": {"description": "The name of a profile.", "example": "speech"}},
    "/admin/models/{name}/aliases/{alias}": {
        "name": {"description": "The name of a model, without a version.", "example": "ngram"},
        "alias": {"description": "What a version is to be called: `name@alias`.", "example": "candidate"},
    },
}
"""Descriptions of parameters in paths and queries; the code has only their names and types."""

_OTHER_STATUSES: Mapping[str, Mapping[str, str]] = {
    "/admin/models/load": {"202": "the model is being loaded"},
    "/health/live": {"503": "no more: a model computes without end, and the process should be replaced"},
    "/health/ready": {"503": "not now: the status says why"},
}
"""Other statuses with the reply of 200, and their descriptions, by path."""

SECURITY_SCHEMES: Json = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "From `gramophone keys create`, with the scope that an operation names. Where the service has "
        "no keys all but administration is open.",
    }
}
"""Security scheme of API keys."""

_access_table = AccessTable()
_CLAUSE_END = re.compile(r"[.:;](?:\s|$)")


def describe_operation(path: str, operation: Json, schemas: Json) -> None:
    """Add the group, summary, security, parameters and reply description of an operation.

    Args:
        path: path of the operation.
        operation: description by the framework, changed in place.
        schemas: schemas of all replies, by name.
    """
    operation["tags"] = [tag for prefix, tag in _TAG_OF.items() if f"{path}/".startswith(f"{prefix}/")]
    operation["summary"] = _CLAUSE_END.split(operation["description"], maxsplit=1)[0].replace("\n", " ")
    operation["security"] = _security(path)
    for parameter in operation.get("parameters", ()):
        parameter.update(_PARAMETERS.get(path, {}).get(parameter["name"], {}))
    replies = operation["responses"]
    replies["200"]["description"] = _reply_description(
        replies["200"]["content"]["application/json"]["schema"], schemas
    )
    for status, meaning in _OTHER_STATUSES.get(path, {}).items():
        replies[status] = {**replies["200"], "description": meaning}


def _reply_description(schema: Json, schemas: Json) -> str:
    """Return a one-sentence description of a reply, the first of several."""
    first = schema.get("anyOf", [schema])[0]
    reply_schema = schemas.get(first.get("$ref", "").rpartition("/")[2], {})
    return str(reply_schema.get("description", "The file.")).partition("\n")[0]


def _security(path: str) -> list[Json]:
    """Return alternative security requirements; an empty one means none."""
    rule = _access_table.rule(path)
    if rule is None or rule.scope is None:
        return []
    requirement: Json = {"key": [str(rule.scope)]}
    return [requirement] if rule.scope is KeyScope.ADMIN else [{}, requirement]


_REFERENCE = "#/components/schemas/{model}"
_request_models: dict[str, type[BaseModel]] = {}


def body_of(kind: type[BaseModel]) -> Json:
    """Return the OpenAPI description of the body of a route."""
    _request_models[kind.__name__] = kind
    schema = {"$ref": _REFERENCE.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def replies_of(kind: type | UnionType, *media_types: str) -> dict[int | str, Json]:
    """Return the OpenAPI description of a route's replies, in JSON and in other media types."""
    content: Json = {media_type: {} for media_type in media_types}
    return {
        200: {"model": kind, "content": content},
        "4XX": {"model": ErrorReply, "description": "the request cannot be answered"},
        "5XX": {"model": ErrorReply, "description": "the service cannot answer now"},
    }


def install_openapi(app: FastAPI) -> None:
    """Serve the document at /openapi.json.

    It is made on the first request, on a thread, since that takes a tenth of a second.
    """

    @cache
    def content() -> bytes:
        return json.dumps(make_document(app), ensure_ascii=False).encode()

    async def document() -> Response:
        return Response(await asyncio.to_thread(content), media_type="application/json")

    app.add_api_route("/openapi.json", document, include_in_schema=False)


def make_document(app: FastAPI) -> Json:
    """Make the document of all routes of an application."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=INTRODUCTION,
        routes=app.routes,
        tags=[{"name": name, "description": description} for name, description in TAGS.items()],
    )
    components = document["components"]
    schemas = components["schemas"]
    schemas.update(_request_schemas())
    components["securitySchemes"] = SECURITY_SCHEMES
    components["examples"] = ERROR_EXAMPLES
    for path, method, operation in operations_in(document):
        describe_operation(path, operation, schemas)
        add_media_types(path, operation, schemas)
        add_examples(f"{method.upper()} {path}", operation, schemas)
    return document


def operations_in(document: Json) -> Iterator[tuple[str, str, Json]]:
    """Yield each path, method and operation of a document, in order."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield path, method, operation


def _request_schemas() -> Json:
    """Return the schemas of all requests, lines of streams included, by name."""
    lines = {kinds.request.__name__: kinds.request for kinds in LINES_OPERATIONS.values()}
    inputs = [(kind, "validation") for kind in (_request_models | lines).values()]
    _, schemas = models_json_schema(inputs, ref_template=_REFERENCE)  # type: ignore[arg-type]  # literals
    definitions: Json = schemas["$defs"]
    return definitions
