"""What a client raises.

GramophoneError
├ BadRequestError      400, 408, 413: the request is wrong; `param` says where
├ AccessError          401, 403: the key is missing, unknown, or not good for this
├ NotFoundError        404: no such model, state or user
├ StateElsewhereError  409: another process has the state; the message says which
├ SupersededError      409: a newer request of the same session took its place
├ OverloadedError      429, after all retries
├ UnavailableError     503, after all retries: not ready, or shutting down
├ DeadlineError        504: out of time
├ ServerError          every other status
└ UnreachableError     there was no answer at all
"""

import httpx
from pydantic import TypeAdapter, ValidationError

from service.schemas.replies import ErrorBody, ErrorReply


class GramophoneError(Exception):
    """The service did not do what it was asked.

    Attributes:
        status: of HTTP; 0 if there was no answer.
        type: kind of error.
        param: name of the field that is wrong, if one is.
        code: stable, machine-readable name.
        request_id: to find the request in the service's log.
    """

    def __init__(self, error: ErrorBody, *, status: int, request_id: str | None = None) -> None:
        super().__init__(error.message)
        self.status = status
        self.type = error.type
        self.param = error.param
        self.code = error.code
        self.request_id = request_id


class BadRequestError(GramophoneError):
    """The request is wrong."""


class AccessError(GramophoneError):
    """The key is missing, unknown, or not good for this."""


class NotFoundError(GramophoneError):
    """There is no such model, state or user."""


class StateElsewhereError(GramophoneError):
    """Another process has the state; its handle begins with that one's name."""


class SupersededError(GramophoneError):
    """A newer request of the same session took its place."""


class OverloadedError(GramophoneError):
    """The service has too much to do."""


class UnavailableError(GramophoneError):
    """The model is not ready, or the service is shutting down."""


class DeadlineError(GramophoneError):
    """The request took too long."""


class ServerError(GramophoneError):
    """The service failed."""


class UnreachableError(GramophoneError):
    """There was no answer."""


_ERRORS_BY_STATUS: dict[int, type[GramophoneError]] = {
    400: BadRequestError,
    401: AccessError,
    403: AccessError,
    404: NotFoundError,
    408: BadRequestError,
    409: StateElsewhereError,
    413: BadRequestError,
    429: OverloadedError,
    503: UnavailableError,
    504: DeadlineError,
}

# what a status alone does not tell
_ERRORS_BY_CODE: dict[str | None, type[GramophoneError]] = {"superseded": SupersededError}

# in the middle of a stream the status has gone out, so the code must tell
_STREAM_ERRORS: dict[str | None, type[GramophoneError]] = {
    "deadline_exceeded": DeadlineError,
    "draining": UnavailableError,
}

_ERROR_REPLY = TypeAdapter(ErrorReply)


def response_error(response: httpx.Response) -> GramophoneError:
    """What a response that is no success, and has been read, says."""
    try:
        error = _ERROR_REPLY.validate_json(response.content).error
    except ValidationError:  # something between us and the service answered
        error = ErrorBody(response.text[:200], "http_error", None, None)
    kind = _ERRORS_BY_CODE.get(error.code) or _ERRORS_BY_STATUS.get(response.status_code, ServerError)
    return kind(error, status=response.status_code, request_id=response.headers.get("x-request-id"))


def stream_error(payload: str) -> GramophoneError:
    """What the last event of a stream that failed says."""
    error = _ERROR_REPLY.validate_json(payload).error
    return _STREAM_ERRORS.get(error.code, ServerError)(error, status=200)


def transport_error(error: httpx.TransportError) -> UnreachableError:
    """The error of ours for one of the transport."""
    body = ErrorBody(f"{type(error).__name__}: {error}", "connection_error", None, None)
    return UnreachableError(body, status=0)
