"""The client's side of /v1/states: states of texts that the service keeps for a decoder."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import httpx
from pydantic import TypeAdapter

from service.client.calls import Call, Contexts, read_floats
from service.schemas.state_replies import AdvanceReply, FreeReply, NextReply, OpenStatesReply

FetchReply = Callable[[Call[Any]], Any]
AsyncFetchReply = Callable[[Call[Any]], Awaitable[Any]]
Send = Callable[[Call[Any]], httpx.Response]
AsyncSend = Callable[[Call[Any]], Awaitable[httpx.Response]]

_OPENED = TypeAdapter(OpenStatesReply)
_ADVANCED = TypeAdapter(AdvanceReply)
_NEXT = TypeAdapter(NextReply)
_FREED = TypeAdapter(FreeReply)


class ContinuationOptions(TypedDict):
    """What follows a state; see POST /v1/states/advance. With neither text nor ids it is a fork."""

    state: str
    text: NotRequired[str]
    token_ids: NotRequired[Sequence[int]]
    eos: NotRequired[bool]
    keep: NotRequired[bool]


class States:
    """What a `Client` asks about states.

    Args:
        ask: sends a call and reads its reply.
        send: sends a call.

    Every method raises GramophoneError.
    """

    def __init__(self, ask: FetchReply, send: Send) -> None:
        self._ask = ask
        self._send = send

    def open(self, context: Contexts = "", *, model: str | None = None, bos: bool = True) -> OpenStatesReply:
        """Keep the state after each context."""
        reply: OpenStatesReply = self._ask(open_call(context, model, bos=bos))
        return reply

    def advance(
        self,
        continuations: Sequence[ContinuationOptions],
        *,
        next_token_ids: Sequence[int] = (),
        free: Iterable[str] = (),
    ) -> AdvanceReply:
        """Score continuations, keep the states after them, and then free others."""
        reply: AdvanceReply = self._ask(advance_call(continuations, next_token_ids, free))
        return reply

    def next(self, states: Sequence[str], *, token_ids: Sequence[int] | None = None) -> NextReply:
        """Log-probabilities of some tokens, or of all, after each state."""
        reply: NextReply = self._ask(next_call(states, token_ids))
        return reply

    def log_probs(
        self, states: Sequence[str], *, token_ids: Sequence[int] | None = None
    ) -> "memoryview[float]":
        """The same as float32 [B, K]."""
        return read_floats(self._send(next_call(states, token_ids, binary=True)))

    def free(self, states: Iterable[str]) -> int:
        """Forget states; how many there were."""
        reply: FreeReply = self._ask(free_call(states))
        return reply.freed


class AsyncStates:
    """The same as `States`, for asyncio.

    Args:
        ask: sends a call and reads its reply.
        send: sends a call.

    Every method raises GramophoneError.
    """

    def __init__(self, ask: AsyncFetchReply, send: AsyncSend) -> None:
        self._ask = ask
        self._send = send

    async def open(
        self, context: Contexts = "", *, model: str | None = None, bos: bool = True
    ) -> OpenStatesReply:
        """Keep the state after each context."""
        reply: OpenStatesReply = await self._ask(open_call(context, model, bos=bos))
        return reply

    async def advance(
        self,
        continuations: Sequence[ContinuationOptions],
        *,
        next_token_ids: Sequence[int] = (),
        free: Iterable[str] = (),
    ) -> AdvanceReply:
        """Score continuations, keep the states after them, and then free others."""
        reply: AdvanceReply = await self._ask(advance_call(continuations, next_token_ids, free))
        return reply

    async def next(self, states: Sequence[str], *, token_ids: Sequence[int] | None = None) -> NextReply:
        """Log-probabilities of some tokens, or of all, after each state."""
        reply: NextReply = await self._ask(next_call(states, token_ids))
        return reply

    async def log_probs(
        self, states: Sequence[str], *, token_ids: Sequence[int] | None = None
    ) -> "memoryview[float]":
        """The same as float32 [B, K]."""
        return read_floats(await self._send(next_call(states, token_ids, binary=True)))

    async def free(self, states: Iterable[str]) -> int:
        """Forget states; how many there were."""
        reply: FreeReply = await self._ask(free_call(states))
        return reply.freed


def open_call(context: Contexts, model: str | None, *, bos: bool) -> Call[OpenStatesReply]:
    """POST /v1/states."""
    return Call("POST", "/v1/states", _OPENED, {"context": context, "model": model, "bos": bos})


def advance_call(
    continuations: Sequence[ContinuationOptions],
    next_token_ids: Sequence[int],
    free: Iterable[str],
) -> Call[AdvanceReply]:
    """POST /v1/states/advance."""
    body: Mapping[str, Any] = {
        "continuations": continuations,
        "next_token_ids": list(next_token_ids),
        "free": list(free),
    }
    return Call("POST", "/v1/states/advance", _ADVANCED, body)


def next_call(
    states: Sequence[str], token_ids: Sequence[int] | None, *, binary: bool = False
) -> Call[NextReply]:
    """POST /v1/states/next."""
    headers = {"accept": "application/octet-stream"} if binary else None
    return Call("POST", "/v1/states/next", _NEXT, {"states": states, "token_ids": token_ids}, headers)


def free_call(states: Iterable[str]) -> Call[FreeReply]:
    """POST /v1/states/free."""
    return Call("POST", "/v1/states/free", _FREED, {"states": list(states)})
