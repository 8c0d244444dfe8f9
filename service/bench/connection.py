"""Connections for load generation, and server-sent events with their token counts."""

import asyncio
import functools
import json
import re
import ssl
import time
from array import array
from dataclasses import dataclass, field
from typing import Any, Self

from typing_extensions import override

from service.bench.plan import Request, Target
from service.http_client import ClientConnection, ExchangeError

_DONE = b"[DONE]"
_EVENT_STREAM = b"text/event-stream"
_USAGE = re.compile(rb'"completion_tokens": *(\d+)')
_tls_context = functools.cache(ssl.create_default_context)


def split_events(stream: bytes) -> tuple[list[bytes], bytes]:
    """Return the payloads of complete server-sent events (comments have none), and the rest."""
    *complete, rest = stream.replace(b"\r\n", b"\n").split(b"\n\n")
    lines = ([line for line in event.split(b"\n") if line.startswith(b"data:")] for event in complete)
    payloads = (b"\n".join(line[5:].removeprefix(b" ") for line in own) for own in lines)
    return [payload for payload in payloads if payload], rest


def _num_tokens(choice: Any) -> int:
    if not isinstance(choice, dict):
        return 0
    if isinstance(ids := choice.get("token_ids"), list):
        return len(ids)
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return 1 if text else 0  # the last event of a choice has no text


def error_message(body: bytes | bytearray) -> str:
    """Return one line of an error in OpenAI's or FastAPI's format, or the body's start."""
    if (value := _fields(body)) is not None:
        error = value.get("error", value.get("detail", value))
        body = str(error.get("message", error) if isinstance(error, dict) else error).encode()
    return " ".join(body.decode(errors="replace").split())[:200]


def _fields(body: bytes | bytearray) -> dict[str, Any] | None:
    """Return a JSON object; None for other JSON and for other texts."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(slots=True)
class Reply:
    """A reply while it arrives.

    Attributes:
        status: HTTP status.
        streamed: true for a stream of server-sent events, whose body is not stored.
        num_tokens: generated tokens; without streaming, from the reply's usage.
        token_times_s: arrival times of events with tokens, by `perf_counter`.
        ended_s: time of completion.
        error: error message within a stream.
        body: the complete body; empty for a stream.
    """

    status: int
    streamed: bool
    num_tokens: int = 0
    token_times_s: "array[float]" = field(default_factory=lambda: array("d"))
    ended_s: float = 0.0
    error: str | None = None
    body: bytearray = field(default_factory=bytearray)
    _rest: bytes = b""

    def push(self, piece: bytes, now_s: float) -> None:
        """Add a chunk of the body that arrived at `now_s`."""
        if not self.streamed:
            self.body += piece
            return
        payloads, self._rest = split_events(self._rest + piece)
        for payload in payloads:
            value = _fields(payload) or {}
            choices, usage = value.get("choices"), value.get("usage")
            # an event in neither this API's nor OpenAI's format counts as one token
            count = sum(map(_num_tokens, choices)) if isinstance(choices, list) else payload != _DONE
            if value.get("error"):
                self.error = self.error or error_message(payload)
            elif count:
                self.token_times_s.append(now_s)
                self.num_tokens += count
            if isinstance(usage, dict) and isinstance(total := usage.get("completion_tokens"), int):
                self.num_tokens = total or self.num_tokens

    def end(self, now_s: float) -> None:
        """Mark the reply as complete."""
        self.ended_s = now_s
        if not self.streamed and (found := _USAGE.search(self.body)):
            self.num_tokens = int(found[1])


class Connection(ClientConnection):
    """Connection to a target, created by `open`."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self._done: asyncio.Future[Reply] | None = None
        self._reply = Reply(0, streamed=False)
        self._now_s = 0.0

    @classmethod
    async def open(cls, target: Target) -> Self:
        """Open a connection.

        Raises:
            OSError: no server accepts the connection, or its certificate is untrusted.
        """
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: cls(target), target.host, target.port, ssl=_tls_context() if target.tls else None
        )
        return connection

    async def send(self, request: Request) -> Reply:
        """Send a request and return its complete reply; see `exchange`."""
        return await self.exchange(self._target.encode(request))

    async def exchange(self, data: bytes) -> Reply:
        """Send an encoded request and return its complete reply.

        Raises:
            ExchangeError: the reply is missing or incomplete.
        """
        self._done = asyncio.get_running_loop().create_future()
        self.start(data)
        return await self._done

    @override
    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()  # arrival of all parts in this data
        super().data_received(data)

    @override
    def begin_reply(self) -> None:
        kinds = (value for name, value in self.headers if name == b"content-type")
        self._reply = Reply(self.status, streamed=next(kinds, b"").startswith(_EVENT_STREAM))

    @override
    def on_body(self, body: bytes) -> None:
        self._reply.push(body, self._now_s)

    @override
    def end_reply(self, error: ExchangeError | None) -> None:
        done, self._done = self._done, None
        if done is None or done.done():
            return
        if error is not None:
            done.set_exception(error)
            return
        self._reply.end(self._now_s if self.transport is not None else time.perf_counter())
        done.set_result(self._reply)
