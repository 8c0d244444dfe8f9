"""Stored word lists: PUT, GET and DELETE /v1/wordlists/{name}."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from itertools import islice
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response, StreamingResponse

from models.errors import InputError, OverloadedError
from models.word_list import MAX_ENTRIES, WordListBuilder, WordListInfo
from service.hosting.word_list_store import StoredList
from service.middleware.guarded_request import guarded
from service.routes.endpoints import LINES_TYPE, EndpointRouter
from service.routes.request import json_response, owner_of, services_of
from service.schemas.replies import to_json
from service.schemas.wire import checked_name, parse_object
from service.schemas.word_lists import (
    MAX_LINE_BYTES,
    NAME_PATTERN,
    NAME_RULE,
    DeletedReply,
    WeightedEntry,
    WordListReply,
    WordListSettings,
    WordListsReply,
    parse_entries,
)

router = EndpointRouter()
MAX_UPLOADS = 4
"""Maximum lists that a process receives and compiles at a time, shared by keys."""

_ENTRIES_PER_PIECE = 1 << 12
_PART_BYTES = 1 << 16
"""Bytes of lines parsed in one go, in some milliseconds."""

_check_name = partial(checked_name, "name", pattern=NAME_PATTERN, rule=NAME_RULE)
_ListName = Annotated[
    str,
    Path(
        description="Name of a word list; it belongs to the API key that stored it.",
        examples=["names"],
        json_schema_extra={"pattern": NAME_PATTERN},
    ),
]
_Casing = Annotated[
    str,
    Query(
        description="`exact` compares entries in their case, `ignore` in any.",
        examples=["exact"],
        json_schema_extra={"enum": ["exact", "ignore"]},
    ),
]
_Language = Annotated[
    str | None,
    Query(
        description="Language such as `en-US` or `en`: `/v2/check` accepts the words in texts of this language.",
        examples=["en-US"],
    ),
]


@router.endpoint("GET", "/v1/wordlists", tag="Word lists", reply=WordListsReply)
async def list_word_lists(request: Request) -> Response:
    """List the word lists of the API key."""
    found = await asyncio.to_thread(services_of(request).word_lists.all, owner_of(request))
    return json_response(WordListsReply([_described(one) for one in found]))


@router.endpoint("GET", "/v1/wordlists/{name}", tag="Word lists", reply=WordListReply)
async def read_word_list(request: Request, name: _ListName) -> Response:
    """Describe a word list."""
    store, owner = services_of(request).word_lists, owner_of(request)
    return json_response(_described(await asyncio.to_thread(store.find, owner, _check_name(name))))


@router.endpoint(
    "GET",
    "/v1/wordlists/{name}/entries",
    tag="Word lists",
    reply=WeightedEntry,
    media_types=(LINES_TYPE,),
)
async def export_word_list(request: Request, name: _ListName) -> Response:
    """Export the entries of a word list with their weights, as JSON lines that can be stored again."""
    store, owner = services_of(request).word_lists, owner_of(request)
    found = await asyncio.to_thread(store.find, owner, _check_name(name))
    entries = found.words.entries()

    def next_lines() -> bytes:
        some = islice(entries, _ENTRIES_PER_PIECE)
        return b"".join(to_json({"text": text, "weight": weight}) + b"\n" for text, weight in some)

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(next_lines):
            yield piece

    return StreamingResponse(pieces(), media_type=LINES_TYPE)


@router.endpoint(
    "PUT",
    "/v1/wordlists/{name}",
    tag="Word lists",
    body=WeightedEntry,
    body_type=LINES_TYPE,
    reply=WordListReply,
)
async def write_word_list(
    request: Request,
    name: _ListName,
    casing: _Casing = "ignore",  # noqa: ARG001 - for the OpenAPI document
    language: _Language = None,  # noqa: ARG001 - likewise
) -> Response:
    """Store a word list: a line per entry, a string or an object with text and weight.

    It replaces one of this name; the weights of equal entries are added up. The body may be longer than others. An
    invalid line leaves everything as it was.
    """
    services = services_of(request)
    given = parse_object(WordListSettings, request.query_params)
    info = WordListInfo(_check_name(name), casing=given.casing, language=given.language)
    owner = owner_of(request)
    if refusal := services.uploads.refusal(owner, 1):
        raise OverloadedError(f"{services.uploads.used} word lists are being stored; {refusal}")
    services.uploads.add(owner, 1)
    try:
        builder = WordListBuilder(info)
        parts = guarded(request.scope).body_parts(services.word_lists.max_bytes)
        async for lines, number in _lines_of(parts):
            await asyncio.to_thread(_add, builder, lines, number)
        if not builder.num_added:
            raise InputError("the body has no entries; it must have one or more", param="body")
        found = await asyncio.to_thread(services.word_lists.put, owner, name, builder)
    finally:
        services.uploads.add(owner, -1)
    return json_response(_described(found))


@router.endpoint("DELETE", "/v1/wordlists/{name}", tag="Word lists", reply=DeletedReply)
async def delete_word_list(request: Request, name: _ListName) -> Response:
    """Delete a word list; later requests that name it are rejected."""
    store, owner = services_of(request).word_lists, owner_of(request)
    deleted = await asyncio.to_thread(store.delete, owner, _check_name(name))
    return json_response(DeletedReply(name, deleted))


async def _lines_of(parts: AsyncIterator[bytes]) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield the lines of a body that arrives in parts, some at a time, with the number of the first.

    Raises:
        InputError: a line is too long.
    """
    number, rest = 1, b""
    async for part in parts:
        for begin in range(0, len(part), _PART_BYTES):
            *lines, rest = (rest + part[begin : begin + _PART_BYTES]).split(b"\n")
            for at, line in enumerate([*lines, rest], number):
                if len(line) > MAX_LINE_BYTES:
                    problem = f"has at least {len(line)} bytes; at most {MAX_LINE_BYTES} are accepted"
                    raise InputError(f"line {at}: {problem}", param="body")
            yield lines, number
            number += len(lines)
    yield [rest], number


def _add(builder: WordListBuilder, lines: list[bytes], number: int) -> None:
    builder.add(parse_entries(lines, number))
    if builder.num_added > MAX_ENTRIES:
        last = number + len(lines) - 1
        raise InputError(
            f"the body has {builder.num_added} entries or more, up to line {last}; at most {MAX_ENTRIES} are accepted",
            param="body",
        )


def _described(stored: StoredList) -> WordListReply:
    info = stored.words.info
    return WordListReply(*info[:-1], stored.num_bytes)
