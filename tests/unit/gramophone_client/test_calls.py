"""Requests of the client: custom headers for routing by a proxy, and paths."""

import asyncio
from importlib import metadata

import httpx
import pytest

from gramophone_client import AsyncClient, Client, NotFoundError, VersionError, __version__
from gramophone_client.calls import retry_delay_s

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


@pytest.mark.parametrize(
    ("asked", "told_s"),
    [("3", 3.0), ("9" * 400, 30.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.5), ("\u00b2", 0.5)],
)
def test_a_time_to_wait_is_followed_if_it_is_a_number(asked, told_s):
    answer = httpx.Response(503, headers=[(b"retry-after", asked.encode("latin-1"))])
    assert retry_delay_s(answer, 0, 1) == told_s


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
