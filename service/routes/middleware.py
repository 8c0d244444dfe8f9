"""What surrounds every request: an id, a limit on its body, a record of it. Plain ASGI."""

import re
import time
import uuid

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.engine.metrics import Metrics
from service.routes.errors import internal_error

_log = structlog.get_logger(__name__)
_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_HEADER = b"x-request-id"


class RequestRecord:
    """Gives each request an id and, once it is answered, a line in the log and its place in the metrics.

    The last resort, too: what nobody has handled is logged and answered 500.

    Args:
        app: what answers.
        metrics: where requests are counted and timed.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.perf_counter()
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (_HEADER, request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:  # the last-resort handler
            _log.exception("request failed", request_id=request_id)
            if status:  # too late for an answer: the server must see this and drop the connection
                raise
            await internal_error()(scope, receive, send_with_id)
        finally:
            self._record(scope, status, time.perf_counter() - started_s)

    def _record(self, scope: Scope, status: int, elapsed_s: float) -> None:
        # the route's template and not the path, whose variety has no bound
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.http_requests.labels(route, scope["method"], str(status)).inc()
        self._metrics.latency.labels(route).observe(elapsed_s)
        _log.info(
            "request",
            method=scope["method"],
            route=route,
            status=status,
            duration_ms=round(1000 * elapsed_s, 3),
            request_id=scope["state"]["request_id"],
        )


class BodyLimit:
    """Refuses bodies over a limit, whether their length is announced or not.

    Args:
        app: what answers.
        max_bytes: the limit.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = _header(scope, b"content-length") or b"0"
        received = int(announced) if announced.isdigit() else 0
        seen = 0

        async def receive_limited() -> Message:
            nonlocal seen
            if received > self._max_bytes:
                raise self._too_large(received)
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self._max_bytes:
                    raise self._too_large(seen)
            return message

        await self._app(scope, receive_limited, send)

    def _too_large(self, size: int) -> HTTPException:
        return HTTPException(
            413,
            f"the request body has {size} bytes or more; at most {self._max_bytes} are accepted",
            {"connection": "close"},  # the rest of it is not read
        )


def _request_id(scope: Scope) -> str:
    given = _header(scope, _HEADER)
    return given.decode() if given is not None and _SANE_ID.fullmatch(given) else uuid.uuid4().hex


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)
