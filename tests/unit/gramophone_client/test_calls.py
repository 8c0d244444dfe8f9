"""Requests of the client: custom headers for routing by a proxy, and paths."""

import asyncio

import httpx
import pytest

from gramophone_client import AsyncClient, Client, NotFoundError
from gramophone_client.calls import retry_delay_s

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
