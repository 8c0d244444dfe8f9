"""Mapping of errors to HTTP statuses, and the JSON format of error replies.

`ERROR_STATUSES` maps each error class to a status and a type, by default those of its nearest base
class. Folders and bucket URLs are removed from messages of file errors, to hide the registry's
location from clients.
"""

import json
import math
import re
from dataclasses import asdict
from http import HTTPStatus
from typing import NamedTuple

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from models.checkpoint.registry_interface import redact_accounts
from models.errors import (
    CheckpointError,
    DeadlineExceededError,
    DocumentError,
    DomainError,
    EngineError,
    EngineFailedError,
    FormatError,
    InputError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    ProcessLostError,
    RegistryAccessError,
    RegistryError,
    StateElsewhereError,
    StatesFullError,
    SupersededError,
    UnknownStateError,
    UnknownUserError,
    UnknownWordError,
    UnknownWordListError,
    UserStoreError,
    WordListStoreError,
)
from service.engine.metrics import Metrics
from service.schemas.replies import ErrorBody

CLIENT_GONE = 499
"""Status in log and metrics of a request whose client has gone (as in nginx)."""

_HTTP_CODES = {
    405: "method_not_allowed",
    408: "body_too_slow",
    413: "body_too_large",
    415: "unsupported_encoding",
    429: "overloaded",
}
INTERNAL_ERROR = ErrorBody(
    "the service failed on this request; see its log", "server_error", None, "internal_error"
)
"""Body of the reply to an unexpected error."""

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
RETRY_AFTER_S = 1.0
"""Default value of `Retry-After` in seconds."""

_MAX_MESSAGE_CHARS = 1000
_FOLDER_PATHS = re.compile(r"""(?<![\w.])/(?:[^\s/:;,'"()]+/)+""")
"""Paths of folders, removed from messages to clients."""

_BUCKET_URLS = re.compile(r"\b[a-z][a-z0-9+.-]*://(?:[^\s/]+/)+")
"""URLs of folders in object stores."""


class ErrorStatus(NamedTuple):
    """HTTP status and type of a class of errors."""

    status: int
    type: str


ERROR_STATUSES: dict[type[DomainError], ErrorStatus] = {
    InputError: ErrorStatus(400, "invalid_request_error"),
    UnknownStateError: ErrorStatus(404, "invalid_request_error"),
    UnknownUserError: ErrorStatus(404, "invalid_request_error"),
    UnknownWordError: ErrorStatus(404, "invalid_request_error"),
    UserStoreError: ErrorStatus(503, "service_unavailable_error"),
    UnknownWordListError: ErrorStatus(404, "invalid_request_error"),
    WordListStoreError: ErrorStatus(503, "service_unavailable_error"),
    StateElsewhereError: ErrorStatus(409, "invalid_request_error"),
    ModelNotFoundError: ErrorStatus(404, "invalid_request_error"),
    RegistryAccessError: ErrorStatus(409, "conflict_error"),
    RegistryError: ErrorStatus(503, "service_unavailable_error"),
    CheckpointError: ErrorStatus(503, "service_unavailable_error"),
    DocumentError: ErrorStatus(409, "conflict_error"),
    FormatError: ErrorStatus(500, "server_error"),
    ProcessLostError: ErrorStatus(500, "server_error"),
    OverloadedError: ErrorStatus(429, "rate_limit_error"),
    DeadlineExceededError: ErrorStatus(504, "timeout_error"),
    SupersededError: ErrorStatus(409, "conflict_error"),
    EngineFailedError: ErrorStatus(500, "server_error"),
    EngineError: ErrorStatus(503, "service_unavailable_error"),
    DomainError: ErrorStatus(500, "server_error"),
}
"""Status and type of each error class, also for its subclasses without their own."""


def install_error_handlers(app: FastAPI) -> None:
    """Install handlers that reply to errors in the JSON format."""
    for kind in (DomainError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, _on_error)


def error_status(error: DomainError) -> ErrorStatus:
    """Return the status and type of an error."""
    return next(ERROR_STATUSES[kind] for kind in type(error).__mro__ if kind in ERROR_STATUSES)


def error_body(error: DomainError) -> ErrorBody:
    """Return the body of the reply to an error."""
    param = error.param if isinstance(error, InputError) else None
    message = _truncate(str(error))
    if not isinstance(error, (InputError, EngineError)):  # errors about files
        message = _FOLDER_PATHS.sub("", _BUCKET_URLS.sub("", redact_accounts(message)))
    return ErrorBody(message, error_status(error).type, param and _truncate(param), error.code)


def _truncate(text: str) -> str:
    """Truncate a text that may quote long names and values of a request."""
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + "…"


def error_json(body: ErrorBody) -> bytes:
    """Return the JSON `{"error": {…}}`."""
    return json.dumps({"error": asdict(body)}).encode()


def error_response(status: int, body: ErrorBody, headers: dict[str, str] | None = None) -> Response:
    """Return an error response."""
    return Response(error_json(body), status, headers, "application/json")


def not_found(path: str) -> Response:
    """Return the response for a path without a route."""
    body = ErrorBody(f"no endpoint at {path[:200]}", "invalid_request_error", None, "not_found")
    return error_response(HTTPStatus.NOT_FOUND, body)


def response_to(error: Exception, path: str, metrics: Metrics) -> Response | None:
    """Return the reply to an expected error, and count some; None for any other error."""
    if isinstance(error, DomainError):
        status, headers = error_status(error).status, {}
        # the scheduler counts its own
        if isinstance(error, (NotReadyError, StatesFullError)):
            metrics.rejected(error.code)
        if status in {429, 503}:
            wait_s = error.retry_after_s if isinstance(error, OverloadedError) else RETRY_AFTER_S
            headers["retry-after"] = str(max(1, math.ceil(wait_s)))
        return error_response(status, error_body(error), headers)
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)
    if not isinstance(error, HTTPException):
        return None
    status = error.status_code
    if status == HTTPStatus.NOT_FOUND:
        return not_found(path)
    code = _HTTP_CODES.get(status, "http_error")
    metrics.rejected(code)
    kind = "rate_limit_error" if status == HTTPStatus.TOO_MANY_REQUESTS else "invalid_request_error"
    return error_response(status, ErrorBody(str(error.detail), kind, None, code), dict(error.headers or {}))


async def _on_error(request: Request, error: Exception) -> Response:
    path = request.url.path
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{path[:200]} does not allow {request.method}"
        body = ErrorBody(message, "invalid_request_error", None, _HTTP_CODES[error.status_code])
        routes, allowed = request.app.routes, list[str]()
        for method in _METHODS:  # of all routes of the path; the framework names the first's
            scope = {**request.scope, "method": method}
            if any(route.matches(scope)[0] is Match.FULL for route in routes):
                allowed.append(method)
        if "GET" in allowed:
            allowed.append("HEAD")
        return error_response(error.status_code, body, {"allow": ", ".join(allowed)})
    response = response_to(error, path, request.app.state.services.metrics)
    assert response is not None  # noqa: S101 - registered for expected errors
    return response
