"""The OpenAPI document of routes that read their bodies themselves."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.schemas.replies import ErrorReply

_REFERENCE = "#/components/schemas/{model}"
_requests: dict[str, type[BaseModel]] = {}


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """What tells the document which body a route reads."""
    _requests[kind.__name__] = kind
    schema = {"$ref": _REFERENCE.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def replies_of(kind: type, *media_types: str) -> dict[int | str, dict[str, Any]]:
    """What tells the document what a route answers, beside JSON in other media types too."""
    others: dict[str, Any] = {media_type: {} for media_type in media_types}
    return {
        200: {"model": kind, "content": others},
        "4XX": {"model": ErrorReply, "description": "the request cannot be answered"},
        "5XX": {"model": ErrorReply, "description": "the service cannot answer now"},
    }


def install_openapi(app: FastAPI) -> None:
    """Serve a document that knows the bodies too."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            inputs = [(kind, "validation") for kind in _requests.values()]
            _, bodies = models_json_schema(inputs, ref_template=_REFERENCE)  # type: ignore[arg-type]  # literals
            schema["components"]["schemas"].update(bodies["$defs"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way
