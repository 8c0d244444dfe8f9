"""The client's side of /v1/autocomplete, and of what users have accepted."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, TypeAlias, TypedDict
from urllib.parse import quote

from pydantic import TypeAdapter

from service.client.calls import Call
from service.client.states import AsyncFetchReply, FetchReply
from service.schemas.autocomplete_replies import (
    AutocompleteReply,
    ForgottenReply,
    UserPair,
    UserReply,
    UserWord,
    UserWords,
)

_AUTOCOMPLETE = TypeAdapter(AutocompleteReply)
_USER = TypeAdapter(UserReply)
_WORDS = TypeAdapter(UserWords)
_FORGOTTEN = TypeAdapter(ForgottenReply)

DictionaryEntry: TypeAlias = str | Mapping[str, Any]
"""A text, or a mapping with `text` and `weight`."""


class AutocompleteOptions(TypedDict, total=False):
    """How a text is completed; see POST /v1/autocomplete."""

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
    """What a `Client` asks about users of autocomplete.

    Args:
        ask: sends a call and reads its reply.

    Every method raises GramophoneError.
    """

    def __init__(self, ask: FetchReply) -> None:
        self._ask = ask

    def accept(self, user: str, text: str, *, context: str | None = None) -> UserReply:
        """Learn from what a user has accepted after a context."""
        reply: UserReply = self._ask(accept_call(user, text, context))
        return reply

    def export(self, user: str) -> UserWords:
        """All that is known of a user."""
        reply: UserWords = self._ask(export_call(user))
        return reply

    def restore(self, user: str, words: Sequence[UserWord], pairs: Sequence[UserPair] = ()) -> UserReply:
        """Know this of a user instead of whatever was known."""
        reply: UserReply = self._ask(restore_call(user, words, pairs))
        return reply

    def forget(self, user: str) -> bool:
        """Forget a user; whether anything was known."""
        reply: ForgottenReply = self._ask(forget_call(user))
        return reply.forgotten


class AsyncUsers:
    """The same as `Users`, for asyncio.

    Args:
        ask: sends a call and reads its reply.

    Every method raises GramophoneError.
    """

    def __init__(self, ask: AsyncFetchReply) -> None:
        self._ask = ask

    async def accept(self, user: str, text: str, *, context: str | None = None) -> UserReply:
        """Learn from what a user has accepted after a context."""
        reply: UserReply = await self._ask(accept_call(user, text, context))
        return reply

    async def export(self, user: str) -> UserWords:
        """All that is known of a user."""
        reply: UserWords = await self._ask(export_call(user))
        return reply

    async def restore(
        self, user: str, words: Sequence[UserWord], pairs: Sequence[UserPair] = ()
    ) -> UserReply:
        """Know this of a user instead of whatever was known."""
        reply: UserReply = await self._ask(restore_call(user, words, pairs))
        return reply

    async def forget(self, user: str) -> bool:
        """Forget a user; whether anything was known."""
        reply: ForgottenReply = await self._ask(forget_call(user))
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
