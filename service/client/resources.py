"""Sub-clients for states kept by the service and for users of autocomplete, sync and async."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter

from service.client.calls import Call, Contexts, read_floats
from service.schemas.replies import (
    AdvanceReply,
    AutocompleteReply,
    ForgottenReply,
    FreeReply,
    NextReply,
    OpenStatesReply,
    UserPair,
    UserReply,
    UserWord,
    UserWords,
)

FetchReply = Callable[[Call[Any]], Any]
AsyncFetchReply = Callable[[Call[Any]], Awaitable[Any]]
Send = Callable[[Call[Any]], httpx.Response]
AsyncSend = Callable[[Call[Any]], Awaitable[httpx.Response]]

_OPENED = TypeAdapter(OpenStatesReply)
_ADVANCED = TypeAdapter(AdvanceReply)
_NEXT = TypeAdapter(NextReply)
_FREED = TypeAdapter(FreeReply)


class ContinuationOptions(TypedDict):
    """Continuation of a state by POST /v1/states/advance; without text and ids, a copy of the state."""

    state: str
    text: NotRequired[str]
    token_ids: NotRequired[Sequence[int]]
    eos: NotRequired[bool]
    keep: NotRequired[bool]


class States:
    """Requests about states, for `Client.states`.

    Args:
        fetch: function that sends a call and parses its reply.
        send: function that sends a call.

    Every method raises GramophoneError.
    """

    def __init__(self, fetch: FetchReply, send: Send) -> None:
        self._fetch = fetch
        self._send = send

    def open(self, context: Contexts = "", *, model: str | None = None, bos: bool = True) -> OpenStatesReply:
        """Open a state after each context."""
        reply: OpenStatesReply = self._fetch(open_call(context, model, bos=bos))
        return reply

    def advance(
        self,
        continuations: Sequence[ContinuationOptions],
        *,
        next_token_ids: Sequence[int] = (),
        free: Iterable[str] = (),
    ) -> AdvanceReply:
        """Score continuations, keep the states after them, then free the states in `free`."""
        reply: AdvanceReply = self._fetch(advance_call(continuations, next_token_ids, free))
        return reply

    def next(self, states: Sequence[str], *, token_ids: Sequence[int] | None = None) -> NextReply:
        """Return the log-probabilities of the given tokens, or of all, after each state."""
        reply: NextReply = self._fetch(next_call(states, token_ids))
        return reply

    def log_probs(
        self, states: Sequence[str], *, token_ids: Sequence[int] | None = None
    ) -> "memoryview[float]":
        """Return the log-probabilities of `next` as float32 [B, K]."""
        return read_floats(self._send(next_call(states, token_ids, binary=True)))

    def free(self, states: Iterable[str]) -> int:
        """Free states, and return the number of states freed."""
        reply: FreeReply = self._fetch(free_call(states))
        return reply.freed


class AsyncStates:
    """Requests about states, for `AsyncClient.states`.

    Args:
        fetch: function that sends a call and parses its reply.
        send: function that sends a call.

    Every method raises GramophoneError.
    """

    def __init__(self, fetch: AsyncFetchReply, send: AsyncSend) -> None:
        self._fetch = fetch
        self._send = send

    async def open(
        self, context: Contexts = "", *, model: str | None = None, bos: bool = True
    ) -> OpenStatesReply:
        """Open a state after each context."""
        reply: OpenStatesReply = await self._fetch(open_call(context, model, bos=bos))
        return reply

    async def advance(
        self,
        continuations: Sequence[ContinuationOptions],
        *,
        next_token_ids: Sequence[int] = (),
        free: Iterable[str] = (),
    ) -> AdvanceReply:
        """Score continuations, keep the states after them, then free the states in `free`."""
        reply: AdvanceReply = await self._fetch(advance_call(continuations, next_token_ids, free))
        return reply

    async def next(self, states: Sequence[str], *, token_ids: Sequence[int] | None = None) -> NextReply:
        """Return the log-probabilities of the given tokens, or of all, after each state."""
        reply: NextReply = await self._fetch(next_call(states, token_ids))
        return reply

    async def log_probs(
        self, states: Sequence[str], *, token_ids: Sequence[int] | None = None
    ) -> "memoryview[float]":
        """Return the log-probabilities of `next` as float32 [B, K]."""
        return read_floats(await self._send(next_call(states, token_ids, binary=True)))

    async def free(self, states: Iterable[str]) -> int:
        """Free states, and return the number of states freed."""
        reply: FreeReply = await self._fetch(free_call(states))
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


_AUTOCOMPLETE = TypeAdapter(AutocompleteReply)
_USER = TypeAdapter(UserReply)
_WORDS = TypeAdapter(UserWords)
_FORGOTTEN = TypeAdapter(ForgottenReply)

DictionaryEntry: TypeAlias = str | Mapping[str, Any]
"""A text, or a mapping with `text` and `weight`."""


class AutocompleteOptions(TypedDict, total=False):
    """Options of POST /v1/autocomplete."""

    model: str
    limit: int
    max_words: int
    min_probability: float
    rank: Literal["probability", "savings"]
    casing: Literal["exact", "ignore"]
    fuzzy: int
    dictionary: Sequence[DictionaryEntry]
    blocklist: Sequence[str]
    user: str
    user_weight: float
    session: str
    max_steps: int
    timeout_ms: int


class Users:
    """Requests about users of autocomplete, for `Client.users`.

    Args:
        fetch: function that sends a call and parses its reply.

    Every method raises GramophoneError.
    """

    def __init__(self, fetch: FetchReply) -> None:
        self._fetch = fetch

    def accept(self, user: str, text: str, *, context: str | None = None) -> UserReply:
        """Learn words and pairs from a text that a user has accepted after a context."""
        reply: UserReply = self._fetch(accept_call(user, text, context))
        return reply

    def export(self, user: str) -> UserWords:
        """Return the words and pairs learnt from a user."""
        reply: UserWords = self._fetch(export_call(user))
        return reply

    def restore(self, user: str, words: Sequence[UserWord], pairs: Sequence[UserPair] = ()) -> UserReply:
        """Replace the words and pairs of a user."""
        reply: UserReply = self._fetch(restore_call(user, words, pairs))
        return reply

    def forget(self, user: str) -> bool:
        """Forget a user, and return whether the user was known."""
        reply: ForgottenReply = self._fetch(forget_call(user))
        return reply.forgotten


class AsyncUsers:
    """Requests about users of autocomplete, for `AsyncClient.users`.

    Args:
        fetch: function that sends a call and parses its reply.

    Every method raises GramophoneError.
    """

    def __init__(self, fetch: AsyncFetchReply) -> None:
        self._fetch = fetch

    async def accept(self, user: str, text: str, *, context: str | None = None) -> UserReply:
        """Learn words and pairs from a text that a user has accepted after a context."""
        reply: UserReply = await self._fetch(accept_call(user, text, context))
        return reply

    async def export(self, user: str) -> UserWords:
        """Return the words and pairs learnt from a user."""
        reply: UserWords = await self._fetch(export_call(user))
        return reply

    async def restore(
        self, user: str, words: Sequence[UserWord], pairs: Sequence[UserPair] = ()
    ) -> UserReply:
        """Replace the words and pairs of a user."""
        reply: UserReply = await self._fetch(restore_call(user, words, pairs))
        return reply

    async def forget(self, user: str) -> bool:
        """Forget a user, and return whether the user was known."""
        reply: ForgottenReply = await self._fetch(forget_call(user))
        return reply.forgotten


def autocomplete_call(text: str, options: AutocompleteOptions) -> Call[AutocompleteReply]:
    """POST /v1/autocomplete."""
    return Call("POST", "/v1/autocomplete", _AUTOCOMPLETE, {"text": text, **options})


def accept_call(user: str, text: str, context: str | None) -> Call[UserReply]:
    """POST /v1/autocomplete/users/{user}/accepted."""
    return Call("POST", f"{_user_path(user)}/accepted", _USER, {"text": text, "context": context})


def export_call(user: str) -> Call[UserWords]:
    """GET /v1/autocomplete/users/{user}."""
    return Call("GET", _user_path(user), _WORDS)


def restore_call(user: str, words: Sequence[UserWord], pairs: Sequence[UserPair]) -> Call[UserReply]:
    """PUT /v1/autocomplete/users/{user}."""
    body = {"words": list(map(asdict, words)), "pairs": list(map(asdict, pairs))}
    return Call("PUT", _user_path(user), _USER, body)


def forget_call(user: str) -> Call[ForgottenReply]:
    """DELETE /v1/autocomplete/users/{user}."""
    return Call("DELETE", _user_path(user), _FORGOTTEN)


def _user_path(user: str) -> str:
    return f"/v1/autocomplete/users/{quote(user, safe='')}"
