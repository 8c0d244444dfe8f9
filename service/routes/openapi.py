"""The OpenAPI document: the framework's, made whole with bodies that routes read themselves, and with examples."""

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from service.routes.openapi_examples import ERROR_EXAMPLES, add_examples
from service.routes.openapi_lines import LINES_OPERATIONS, add_media_types
from service.routes.openapi_operations import INTRODUCTION, SECURITY_SCHEMES, TAGS, describe_operation
from service.schemas.replies import ErrorReply

_REFERENCE = "#/components/schemas/{model}"
_request_models: dict[str, type[BaseModel]] = {}
Json = dict[str, Any]


def body_of(kind: type[BaseModel]) -> Json:
    """What tells the document which body a route reads."""
    _request_models[kind.__name__] = kind
    schema = {"$ref": _REFERENCE.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def replies_of(kind: type | UnionType, *media_types: str) -> dict[int | str, Json]:
    """What tells the document what a route answers, beside JSON in other media types too."""
    others: Json = {media_type: {} for media_type in media_types}
    return {
        200: {"model": kind, "content": others},
        "4XX": {"model": ErrorReply, "description": "the request cannot be answered"},
        "5XX": {"model": ErrorReply, "description": "the service cannot answer now"},
    }


def install_openapi(app: FastAPI) -> None:
    """Serve the document at /openapi.json.

    It is made when it is first asked for, which takes a tenth of a second: on a thread, so that nobody waits for it.
    """

    @cache
    def content() -> bytes:
        return json.dumps(make_document(app), ensure_ascii=False).encode()

    async def document() -> Response:
        return Response(await asyncio.to_thread(content), media_type="application/json")

    app.add_api_route("/openapi.json", document, include_in_schema=False)


def make_document(app: FastAPI) -> Json:
    """The document of all routes of an application."""
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
    """Each path, method and operation of a document, in its order."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield path, method, operation


def _request_schemas() -> Json:
    """The schemas of all that is read, lines of streams included, by name."""
    lines = {kinds.request.__name__: kinds.request for kinds in LINES_OPERATIONS.values()}
    inputs = [(kind, "validation") for kind in (_request_models | lines).values()]
    _, schemas = models_json_schema(inputs, ref_template=_REFERENCE)  # type: ignore[arg-type]  # literals
    found: Json = schemas["$defs"]
    return found
