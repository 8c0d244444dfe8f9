"""Server-sent events as they arrive, and how many tokens each brings."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

_DONE = b"[DONE]"


class EventSplitter:
    """Payloads of events from the pieces a body arrives in."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, piece: bytes) -> Iterator[bytes]:
        """The payloads that this piece completes; comments have none."""
        rest = self._rest + piece
        if b"\r" in rest:
            rest = rest.replace(b"\r\n", b"\n")
        *whole, self._rest = rest.split(b"\n\n")
        for event in whole:
            lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
            payload = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
            if payload:
                yield payload


class Event(NamedTuple):
    """What an event says.

    Attributes:
        num_tokens: that it brings.
        usage_tokens: generated in the whole reply, if the server counts them.
        error: that the server reports in the middle of a stream.
    """

    num_tokens: int = 0
    usage_tokens: int | None = None
    error: str | None = None


def parse_event(payload: bytes) -> Event:
    """Read an event of ours, of OpenAI's completions and chats, or of others, which bring a token each."""
    if payload == _DONE:
        return Event()
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):  # plain text, say
        return Event(num_tokens=1)
    if not isinstance(value, dict):
        return Event(num_tokens=1)
    if value.get("error"):
        return Event(error=error_message(payload))
    choices = value.get("choices")
    if not isinstance(choices, list):
        return Event(num_tokens=1)
    return Event(sum(map(_num_tokens, choices)), _usage_tokens(value))


def _num_tokens(choice: Any) -> int:
    if not isinstance(choice, dict):
        return 0
    if isinstance(ids := choice.get("token_ids"), list):
        return len(ids)
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return 1 if text else 0  # the event that tells the end of a choice has no text


def _usage_tokens(reply: dict[str, Any]) -> int | None:
    usage = reply.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def error_message(body: bytes) -> str:
    """What an error says, in a line: the message of OpenAI's shape or of FastAPI's, else its beginning."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        error = value.get("error", value.get("detail", value))
        body = str(error.get("message", error) if isinstance(error, dict) else error).encode()
    return " ".join(body.decode(errors="replace").split())[:200]
