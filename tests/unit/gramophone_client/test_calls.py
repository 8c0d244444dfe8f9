"""Requests of the client: custom headers for routing by a proxy, and paths."""

import asyncio
from importlib import metadata

import httpx
import pytest

from gramophone_client import (
    AsyncClient,
    Client,
    NotFoundError,
    ServerError,
    UnreachableError,
    VersionError,
    __version__,
)
from gramophone_client.calls import retry_delay_s
from gramophone_client.types import WeightedEntry

MAJOR = __version__.partition(".")[0]
OURS = {"X-Gramophone-Session": "user-17"}


def listing(seen):
    """Transport of a service without models that records request headers in `seen`."""

    def answer(request):
        seen.append(request.headers)
        return httpx.Response(200, json={"object": "list", "data": []})

    return httpx.MockTransport(answer)


def test_they_are_sent_with_every_request():
    seen = []
    with Client("http://x", headers=OURS, transport=listing(seen)) as client:
        client.models()
        client.models()
    assert [headers["x-gramophone-session"] for headers in seen] == ["user-17", "user-17"]


def test_the_asynchronous_client_sends_them_too():
    seen = []

    async def ask():
        async with AsyncClient("http://x", headers=OURS, transport=listing(seen)) as client:
            await client.models()

    asyncio.run(ask())
    assert seen[0]["x-gramophone-session"] == "user-17"


def test_the_key_goes_beside_them():
    seen = []
    with Client("http://x", api_key="gm_1", headers=OURS, transport=listing(seen)) as client:
        client.models()
    assert seen[0]["authorization"] == "Bearer gm_1"


def test_an_address_is_one_part_of_the_path():
    asked = []

    def answer(request):
        asked.append(request.url.raw_path)
        return httpx.Response(
            404, json={"error": {"message": "no", "type": "t", "param": None, "code": None}}
        )

    with Client("http://x", transport=httpx.MockTransport(answer)) as client:
        for address in ("../../admin/models", "m@1"):
            with pytest.raises(NotFoundError):
                client.model(address)
    assert asked == [b"/v1/models/..%2F..%2Fadmin%2Fmodels", b"/v1/models/m@1"]


def test_a_word_list_is_sent_in_lines_again_after_429(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    stored = {"name": "w", "version": 1, "casing": "exact", "language": None, "entries": 4, "words": 4}
    asked = []

    def answer(request):
        asked.append((str(request.url), request.headers["content-type"], request.content.decode()))
        return httpx.Response(200 if len(asked) > 1 else 429, json={**stored, "bytes": 9})

    given = ["a", ("\u00fc", 2), {"text": "c\u2028d"}, WeightedEntry(text="e", weight=3)]
    with Client("http://x", transport=httpx.MockTransport(answer)) as client:
        assert client.wordlists.put("a/b", iter(given), casing="exact").bytes == 9
    lines = '"a"\n{"text": "\u00fc", "weight": 2}\n{"text": "c\u2028d"}\n{"text": "e", "weight": 3.0}\n'
    assert asked == [("http://x/v1/wordlists/a%2Fb?casing=exact", "application/x-ndjson", lines)] * 2


def test_entries_that_end_early_are_an_error():
    line = b'{"text": "a", "weight": 2000000000, "invented_later": 1}\n'
    with Client("http://x", transport=streaming(line + line[:-1])) as client:
        entries = client.wordlists.entries("w")
        assert next(entries) == WeightedEntry(text="a", weight=2e9)
        with pytest.raises(UnreachableError, match="the reply ended early"):
            next(entries)


@pytest.mark.parametrize(
    ("asked", "told_s"),
    [
        ("3", 3.0),
        ("9" * 400, 30.0),
        ("Wed, 21 Oct 2037 07:28:00 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 41 Oct 2015 07:28:00 GMT", 0.5),
        ("\u00b2", 0.5),
        ("soon", 0.5),
        ("", 0.5),
    ],
)
def test_a_time_to_wait_is_followed_if_it_is_a_number_or_a_date(asked, told_s):
    answer = httpx.Response(503, headers=[(b"retry-after", asked.encode("latin-1"))])
    assert retry_delay_s(answer, b"", 0, 1) == told_s


EVENT = b'data: {"model": "m@1", "choices": [], "usage": null}\n\n'


def streaming(content):
    """Transport that sends a reply as it is."""
    return httpx.MockTransport(lambda _: httpx.Response(200, content=content))


@pytest.mark.parametrize("content", [b"", b"<html>", b'{"object": "list", "data"', b'{"a": "\xff"}', b"[]"])
def test_a_reply_that_is_not_the_services_is_one_error(content):
    with Client("http://x", transport=streaming(content)) as client:
        for ask in (client.models, lambda: client.score(["a"]), lambda: client.log_probs("a")):
            with pytest.raises(ServerError, match=r"the reply to (GET|POST) /v1/\S+ cannot be parsed"):
                ask()


def test_a_page_in_a_stream_is_one_error():
    with Client("http://x", transport=streaming(b"<html>\xff\n</html>\n")) as client:
        for stream in (client.stream("a"), client.score_lines([{"text": "a"}])):
            with pytest.raises(ServerError, match=r"the reply to POST \S+ cannot be parsed"):
                list(stream)


@pytest.mark.parametrize("end", [b"", b"data: [DO", b": alive\n\n", EVENT[:-5]])
def test_a_stream_without_its_end_is_an_error_after_its_events(end):
    async def gather(seen):
        async with AsyncClient("http://x", transport=streaming(EVENT + end)) as client:
            seen.append(await anext(client.stream("a")))
            seen.extend([piece async for piece in client.stream("a")])

    seen = []
    with pytest.raises(UnreachableError, match="the reply ended early"):
        asyncio.run(gather(seen))
    with Client("http://x", transport=streaming(EVENT + end)) as client:
        stream = client.stream("a")
        assert next(stream) == seen[0]
        with pytest.raises(UnreachableError, match="the reply ended early"):
            next(stream)
    whole = EVENT + EVENT + b": alive\n\ndata: [DONE]\n\n"
    with Client("http://x", transport=streaming(whole)) as client:
        assert list(client.stream("a")) == seen * 2


def test_a_line_that_ends_early_is_an_error():
    line = b'{"error": {"message": "no", "type": "t", "param": null, "code": null}}'
    with Client("http://x", transport=streaming(line + b"\n" + line)) as client:
        lines = client.score_lines([{"text": "a"}] * 2)
        assert next(lines).message == "no"
        with pytest.raises(UnreachableError, match="the reply ended early"):
            next(lines)


def test_a_damaged_encoding_and_an_empty_error_are_told():
    damaged = httpx.Response(200, headers={"content-encoding": "gzip"}, stream=_Damaged())
    for response, error, told in (
        (httpx.Response(302), ServerError, "status 302"),
        (damaged, UnreachableError, "Decoding"),
    ):
        transport = httpx.MockTransport(lambda _, response=response: response)
        with Client("http://x", transport=transport) as client, pytest.raises(error, match=told):
            client.models()


class _Damaged(httpx.SyncByteStream):
    def __iter__(self):
        yield b"not gzip"


CARD = {"object": "list", "data": [], "invented_later": {"a": 1}}


def versioned(version, status=200):
    """Transport of a service of a version."""
    headers = {} if version is None else {"x-gramophone-version": version}
    return httpx.MockTransport(lambda _: httpx.Response(status, json=CARD, headers=headers))


@pytest.mark.parametrize("version", [None, __version__, f"{MAJOR}.99.0"])
def test_fields_of_later_versions_are_ignored(version):
    with Client("http://x", transport=versioned(version)) as client:
        assert client.models().data == []


@pytest.mark.parametrize("status", [200, 404, 503])
def test_a_service_of_another_major_version_is_one_error(status):
    with Client("http://x", transport=versioned("7.1.2", status)) as client:
        with pytest.raises(VersionError, match=rf"service at x has version 7\.1\.2.*of version {MAJOR};"):
            client.models()
        with pytest.raises(VersionError):
            list(client.stream("a"))


def test_the_client_has_the_version_of_its_service():
    assert metadata.version("gramophone-lm").partition(".")[0] == MAJOR
