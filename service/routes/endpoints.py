"""Registration of endpoints, and the OpenAPI document built from it.

`EndpointRouter.endpoint` registers an endpoint once: its path, key scope, body, replies and media
types. The router, the access table of `service.middleware.authentication` and the OpenAPI document
derive from it. Example requests are part of the schemas.
"""

import ast
import asyncio
import inspect
import json
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

from fastapi import APIRouter, FastAPI, Path, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from models.errors import (
    DeadlineExceededError,
    InputError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    UnsupportedError,
)
from models.reranking.formats.reader import format_by_name, format_of_media_type
from service.api_errors import error_body, error_json
from service.api_keys import KeyScope
from service.operations.operation import EventsOperation, Operation, RowsOperation
from service.schemas.replies import ErrorBody, ErrorReply
from service.schemas.wire import parse_json

Json = dict[str, Any]
JSON_TYPE, LINES_TYPE = "application/json", "application/x-ndjson"
FORM_TYPE = "application/x-www-form-urlencoded"
EVENTS_TYPE, BINARY_TYPE = "text/event-stream", "application/octet-stream"

TAGS: Mapping[str, str] = {
    "Predict": "Next tokens: the most probable ones, or the complete distribution.",
    "Score": "Probabilities of texts.",
    "Re-rank": "Re-ranking of candidates, and tuning of feature weights.",
    "Restore": "Capitals and punctuation for texts that lack them.",
    "Generate": "Continuations of texts.",
    "Complete": "Autocomplete, and the words that users have accepted.",
    "Check": "Probable errors in texts, and quality of texts.",
    "Word lists": "Stored words and phrases, for completion, checking and re-ranking.",
    "States": "Stored model states, for decoders with their own search.",
    "OpenAI": "OpenAI's completions API, for existing clients.",
    "Tokenise": "Conversion between text and tokens.",
    "Models": "The served models and their files.",
    "Admin": "Models, aliases and profiles; requires a key with the scope `admin`.",
    "Health": "Liveness and readiness.",
}
"""Groups of operations, in order, with their descriptions."""

AddressInPath = Annotated[
    str, Path(description="Model: `name`, `name@7` or `name@champion`.", examples=["mixture"])
]
"""A model named in the path."""

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])

_SCHEMAS = "#/components/schemas/"
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", re.DOTALL | re.MULTILINE)
_CLAUSE_END = re.compile(r"[.:;](?:\s|$)")
_REJECTED = ("invalid_value", "unsupported_parameter", "invalid_api_key", "model_not_found", "overloaded")
_ERRORS = {
    "4XX": ("invalid or rejected request", _REJECTED),
    "5XX": ("the service cannot process the request now", ("not_ready", "deadline_exceeded")),
}
"""Description and example codes of errors, by status."""
_BINARY_HEADERS = {
    "x-shape": {"description": "Number of rows and columns, such as `2,4000`.", "schema": {"type": "string"}},
    "x-model": {"description": "Address of the model version.", "schema": {"type": "string"}},
}
_BINARY_SCHEMA = {
    "type": "string",
    "format": "binary",
    "description": "Little-endian float32, row by row.",
}

INTRODUCTION = """\
Next tokens, probabilities of texts, the best of several candidates, completions, probable errors.

- **Models** are named `name`, `name@7` or `name@champion`; every reply reports the version as `name@version`. A
  request without a model uses the default model.
- **Log-probabilities** are natural logarithms; a probability of zero is `-9999` and makes a perplexity `null`.
- **Errors** have one shape, `{"error": {"message", "type", "param", "code"}}`; `code` is stable, `param` names the
  field.
- **Keys**: if the service has keys, send `Authorization: Bearer KEY`. `/admin/…` always requires a key.
- **Limits**: requests over a limit get status 400, 408, 413, 415, 429, 431 or 503, with `Retry-After` if a retry can
  succeed.
- **JSON lines**: if an endpoint accepts `application/x-ndjson`, options are in the query string, and the reply has a
  line per line of the body, in order; an invalid line only affects its own reply line, which has `error`.
"""
"""Description of the API, in Markdown."""

_NO_KEY = ErrorBody(
    "a key is required: send `Authorization: Bearer KEY`", "authentication_error", None, "invalid_api_key"
)
_EXAMPLE_ERRORS = (
    _NO_KEY,
    *map(
        error_body,
        (
            InputError.of("top_k", "is 0: input should be greater than or equal to 1"),
            UnsupportedError.of(
                "model",
                "backward@1 reads from right to left; it can score and re-rank, but not predict next tokens",
            ),
            ModelNotFoundError("there is no model 'nobody'; this service has: lstm@1, mixture@1, ngram@1"),
            OverloadedError("1024 requests are queued or running, the maximum of this service"),
            NotReadyError("model mixture@1 is still being loaded"),
            DeadlineExceededError("the request did not finish within 100 ms"),
        ),
    ),
)
ERROR_EXAMPLES: Json = {str(body.code): {"value": json.loads(error_json(body))} for body in _EXAMPLE_ERRORS}
"""Example errors of any operation, by code."""

SECURITY_SCHEMES: Json = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "Key from `gramophone keys create`, with the scope that the operation requires. Without keys, "
        "everything except administration is open.",
    }
}
"""Security scheme of API keys."""


class Lines(NamedTuple):
    """JSON-lines variant: a reply line per body line, with the operation's settings in the query string.

    Attributes:
        request: model of each line of the body.
        reply: model of each reply line that is not an error.
        pairs: query-string examples of options that are objects in JSON.
        list_types: media types of other programs' lists, also accepted as bodies.
    """

    request: type[BaseModel]
    reply: type
    pairs: Mapping[str, str] = {}
    list_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One registered endpoint.

    Attributes:
        method: HTTP method.
        path: template of its path.
        scope: required key scope, if any.
        body: model of its JSON body or a GET's query string, or a union; None without one.
        lines: JSON-lines variant; None without one.
        reply: type of its JSON reply, or a union; None for a file.
        operation: the operation that answers it, if any.
    """

    method: str
    path: str
    scope: KeyScope | None
    body: type[BaseModel] | UnionType | None
    lines: Lines | None
    reply: type | UnionType | None
    operation: type[Operation[Any]] | None = None


class EndpointRoute(APIRoute):
    """Route that directly calls a handler of the request alone; FastAPI's code takes longer."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler itself, or FastAPI's if it has parameters."""
        takes_request_only = len(inspect.signature(self.endpoint).parameters) == 1
        return self.endpoint if takes_request_only else super().get_route_handler()


class EndpointRouter(APIRouter):
    """Router of endpoints.

    Attributes:
        endpoints: registered endpoints.
    """

    def __init__(self) -> None:
        super().__init__(route_class=EndpointRoute)
        self.endpoints: list[Endpoint] = []

    def endpoint(
        self,
        method: str,
        path: str,
        *,
        tag: str | None,
        scope: KeyScope | None = KeyScope.INFER,
        body: type[BaseModel] | UnionType | None = None,
        body_type: str = JSON_TYPE,
        lines: Lines | None = None,
        reply: type | UnionType | None = None,
        media_types: tuple[str, ...] = (),
        statuses: Mapping[int, str] | None = None,
        operation: type[Operation[Any]] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Return a decorator that registers a handler, whose docstring describes the operation.

        Args, besides those of `Endpoint`:
            tag: the operation's group, one of `TAGS`; None to omit it from the OpenAPI document.
            body_type: media type of the body.
            media_types: media types of the reply besides JSON and JSON lines.
            statuses: descriptions of statuses other than 200 and errors; replies have the same type.
        """
        self.endpoints.append(Endpoint(method, path, scope, body, lines, reply, operation))
        replies = _replies(reply, media_types, lines)
        for status, description in (statuses or {}).items():
            replies[status] = {"description": description} | ({"model": reply} if reply else {})

        def register(handler: Handler) -> Handler:
            first_clause = _CLAUSE_END.split(inspect.getdoc(handler) or "", maxsplit=1)[0]
            self.add_api_route(
                path,
                handler,
                methods=[method],
                include_in_schema=tag is not None,
                tags=[tag] if tag else None,
                summary=first_clause.replace("\n", " "),
                response_class=Response,
                responses=replies,
                openapi_extra=_request(scope, None if method == "GET" else body, body_type, lines),
            )
            return handler

        return register

    def operation(
        self,
        operation: type[Operation[Any]],
        path: str,
        name: str,
        tag: str,
        reply: type | UnionType,
        *,
        method: str = "POST",
        **described: Any,
    ) -> None:
        """Register an operation, whose docstring describes it; `name` is its own in the OpenAPI document.

        See `endpoint` for all others; the path has no parameters.
        """
        streams = (EventsOperation, EVENTS_TYPE), (RowsOperation, BINARY_TYPE)
        media_types = tuple(media_type for kind, media_type in streams if issubclass(operation, kind))

        async def handler(request: Request) -> Response:
            raise AssertionError(f"the guard has an operation answer {request.url.path}")

        handler.__name__, handler.__doc__ = name, operation.__doc__
        self.endpoint(
            method,
            path,
            tag=tag,
            body=operation.request,
            reply=reply,
            media_types=media_types,
            operation=operation,
            **described,
        )(handler)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types of a body or reply."""
    return get_args(kind) or (() if kind is None else (kind,))


def _request(
    scope: KeyScope | None, body: type[BaseModel] | UnionType | None, body_type: str, lines: Lines | None
) -> Json:
    """Return the OpenAPI description of an endpoint's requests: security, bodies with examples."""
    keys = [] if scope is None else [{"key": [str(scope)]}]
    request: Json = {"security": keys if scope is KeyScope.ADMIN or not keys else [{}, *keys]}
    content: Json = {}
    if bodies := _alternatives(body):
        found = [example for kind in bodies for example in _examples_of(kind)]
        examples = enumerate([_json_lines(found)] if body_type == LINES_TYPE else found, 1)
        schemas = [{"$ref": _SCHEMAS + kind.__name__} for kind in bodies]
        if body_type == LINES_TYPE:
            schemas.insert(0, {"type": "string"})
        content[body_type] = {
            "schema": {"anyOf": schemas} if len(schemas) > 1 else schemas[0],
            "examples": {
                f"example-{number}" if number > 1 else "example": {"value": value}
                for number, value in examples
            },
        }
        request["requestBody"] = {"required": True, "content": content}
    if lines is not None:
        text = _json_lines(_examples_of(lines.request))
        content[LINES_TYPE] = {
            "schema": {"$ref": _SCHEMAS + lines.request.__name__, "description": "Each line."},
            "examples": {"example": {"value": text}},
        }
        for media_type in lines.list_types:
            form = format_by_name(str(format_of_media_type(media_type)))
            line: Any = parse_json(lines.request, json.dumps(_examples_of(lines.request)[0]).encode())
            text = form.example or "".join(form.write([line.item().given]))
            content[media_type] = {
                "schema": {"type": "string"},
                "examples": {"example": {"value": text}},
            }
    return request


def _json_lines(values: Iterable[Any]) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


def _examples_of(kind: type[BaseModel]) -> list[Any]:
    extra: Any = kind.model_config.get("json_schema_extra") or {}
    examples: list[Any] = extra.get("examples", [])
    return examples


def _replies(
    reply: type | UnionType | None, media_types: Iterable[str], lines: Lines | None
) -> dict[int | str, Json]:
    """Return OpenAPI descriptions of an endpoint's replies and errors, by status."""
    content: Json = {}
    for media_type in media_types:
        schema = (
            {"type": "string"} if media_type.startswith("text/") else {"type": "string", "format": "binary"}
        )
        if media_type == EVENTS_TYPE:
            schema = _one_of(reply, "Data of each event except the last, which is `[DONE]`.")
        elif media_type == BINARY_TYPE:
            schema = _BINARY_SCHEMA
        elif media_type == LINES_TYPE:
            (kind,) = _alternatives(reply)
            schema = {"$ref": _SCHEMAS + kind.__name__, "description": "Each line."}
        content[media_type] = {"schema": schema}
    if lines is not None:
        content[LINES_TYPE] = {"schema": _one_of(lines.reply, "Each line.")}
    success: Json = {"description": "The file.", "content": content}
    if reply is not None:
        description = str(inspect.getdoc(_alternatives(reply)[0])).partition("\n")[0]
        success |= {"description": description} | ({} if LINES_TYPE in media_types else {"model": reply})
    if BINARY_TYPE in content:
        success["headers"] = _BINARY_HEADERS
    replies: dict[int | str, Json] = {200: success}
    for status, (description, codes) in _ERRORS.items():
        examples = {code: {"$ref": f"#/components/examples/{code}"} for code in codes}
        replies[status] = {
            "model": ErrorReply,
            "description": description,
            "content": {JSON_TYPE: {"examples": examples}},
        }
    return replies


def _one_of(reply: Any, description: str) -> Json:
    alternatives = [{"$ref": _SCHEMAS + kind.__name__} for kind in (reply, ErrorReply)]
    return {"anyOf": alternatives, "description": description}


router = EndpointRouter()


@router.endpoint("GET", "/openapi.json", tag=None)
async def openapi_document(request: Request) -> Response:
    """Serve the OpenAPI document; the first request builds it on a thread, in about 0.1 s."""
    state = request.app.state
    if getattr(state, "openapi", None) is None:
        document = await asyncio.to_thread(make_document, request.app, state.endpoints)
        state.openapi = json.dumps(document, ensure_ascii=False).encode()
    return Response(state.openapi, media_type=JSON_TYPE)


def make_document(app: FastAPI, endpoints: Iterable[Endpoint]) -> Json:
    """Build the OpenAPI document of an application with these endpoints."""
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
    schemas.update(_request_schemas(endpoints))
    modules = {kind.__module__ for endpoint in endpoints for kind in _alternatives(endpoint.reply)}
    values = (value for module in modules for value in vars(sys.modules[module]).values())
    replies = {one.__name__: one for one in values if isinstance(one, type) and is_dataclass(one)}
    for name, schema in schemas.items():
        _describe_fields(schema, field_docstrings(replies[name]) if name in replies else {})
    components["securitySchemes"] = SECURITY_SCHEMES
    components["examples"] = ERROR_EXAMPLES
    for endpoint in endpoints:
        if endpoint.lines is not None or (endpoint.body and endpoint.method == "GET"):
            body, kind = _alternatives(endpoint.body)[0], endpoint.operation
            schema, options = schemas[body.__name__], getattr(kind, "settings", body)
            document["paths"][endpoint.path][endpoint.method.lower()]["parameters"] = [
                _query_parameter(name, schema, endpoint.lines) for name in options.model_fields
            ]
    return document


def attribute_descriptions(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a class docstring into its text and the descriptions under `Attributes:`, by attribute."""
    text, _, section = docstring.partition("\n\nAttributes:\n")
    return text, {name: " ".join(about.split()) for name, about in _ATTRIBUTE.findall(section)}


def field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class and its bases, by field."""
    found = {}
    for base in reversed(kind.__mro__[:-1]):
        for statement, below in pairwise(_class_bodies(base.__module__)[base.__name__]):
            match statement, below:
                case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found


@cache
def _class_bodies(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of a module's classes, by class."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _describe_fields(schema: Json, docstrings: Mapping[str, str]) -> None:
    """Add descriptions of fields: docstrings below them, or those in the class docstring."""
    text, descriptions = attribute_descriptions(schema.get("description", ""))
    if descriptions:
        schema["description"] = text
    descriptions |= docstrings
    for name, field in schema.get("properties", {}).items():
        if name in descriptions:
            field.setdefault("description", descriptions[name])


def _request_schemas(endpoints: Iterable[Endpoint]) -> Json:
    """Return the schemas of all bodies, including JSON lines, by name."""
    kinds = {kind for endpoint in endpoints for kind in _alternatives(endpoint.body)}
    kinds |= {endpoint.lines.request for endpoint in endpoints if endpoint.lines}
    inputs = [(kind, "validation") for kind in kinds]
    _, schemas = models_json_schema(inputs, ref_template=_SCHEMAS + "{model}")  # type: ignore[arg-type]  # literals
    definitions: Json = schemas["$defs"]
    return definitions


def _query_parameter(name: str, body: Json, lines: Lines | None) -> Json:
    """Convert a body's field to a query parameter: of the JSON-lines variant, or without `lines` of a GET."""
    field = body["properties"][name]
    schema = {key: value for key, value in field.items() if key not in {"description", "title"}}
    param = {"name": name, "in": "query", "required": False, "description": field.get("description", "")}
    if lines is None:
        if examples := [one[name] for one in body["examples"] if name in one]:
            schema["examples"] = examples
        return param | {"required": name in body["required"], "schema": schema}
    param["description"] = f"For JSON lines. {param['description']}".strip()
    if pairs := lines.pairs.get(name):
        schema = {"type": "string"}
        param["description"] += f" Format: `{pairs}`."
    return param | {"schema": schema, "x-only-with": LINES_TYPE}
