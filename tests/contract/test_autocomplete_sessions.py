"""Of one session the newest request alone is answered; and what is told does not depend on who else is served."""

import asyncio
import contextlib
import time

import httpx
import pytest

from service.client import AsyncClient, SupersededError


@contextlib.contextmanager
def taking(server, delay_s):
    """Let the slow model take so long over each look."""
    model = server.app.state.services.host.resolve("slow").model
    before, model.delay_s = model.delay_s, delay_s
    try:
        yield
    finally:
        model.delay_s = before


async def post(client, **body):
    sent = time.monotonic()
    response = await client.post(
        "/v1/autocomplete", json={"model": "slow", "max_words": 2, "max_steps": 4, **body}
    )
    return response, time.monotonic() - sent


def in_order(server, bodies, pause_s=0.05):
    """The answers to requests that are sent one after the other, none waited for, and how long each took."""

    async def main():
        async with httpx.AsyncClient(base_url=server.url, timeout=10) as client:
            tasks = []
            for body in bodies:
                tasks.append(asyncio.create_task(post(client, **body)))
                await asyncio.sleep(pause_s)
            return await asyncio.gather(*tasks)

    return asyncio.run(main())


def left(server):
    """Sessions that are remembered, and jobs, once there is nothing to wait for."""
    services = server.app.state.services
    until = time.monotonic() + 5
    while len(services.engine.scheduler) and time.monotonic() < until:
        time.sleep(0.01)
    return len(services.sessions), len(services.engine.scheduler)


def test_a_newer_request_of_the_session_takes_the_place_of_the_older(server):
    with taking(server, 0.3):
        (old, old_s), (new, _) = in_order(
            server, [{"text": "the c", "session": "s1"}, {"text": "the ca", "session": "s1"}]
        )
    error = old.json()["error"]
    assert (old.status_code, error["code"], error["type"]) == (409, "superseded", "conflict_error")
    assert old_s < 0.3  # sooner than the model has looked once
    assert new.status_code == 200
    assert left(server) == (0, 0)


def test_one_that_waits_in_the_queue_ends_at_once_too(server):
    with taking(server, 0.3):
        bodies = [{"text": "on a m"}, {"text": "a d", "session": "s2"}, {"text": "a do", "session": "s2"}]
        (first, _), (old, old_s), (new, _) = in_order(server, bodies)
    assert [first.status_code, old.status_code, new.status_code] == [200, 409, 200]
    assert old_s < 0.2
    assert left(server) == (0, 0)


def test_other_sessions_and_none_are_left_alone(server):
    bodies = [
        {"text": "the h", "session": "s3"},
        {"text": "the h", "session": "s4"},
        {"text": "the h"},
        {"text": "a h"},
    ]
    answers = in_order(server, bodies, pause_s=0.01)
    assert [answer.status_code for answer, _ in answers] == [200] * 4


def test_requests_of_a_session_that_come_one_after_the_other_are_all_answered(server, http):
    for text in ("r", "ra", "ran", "ran "):
        reply = http.post("/v1/autocomplete", json={"text": text, "session": "s5"})
        assert reply.status_code == 200
    assert left(server) == (0, 0)


def test_a_client_that_hangs_up_leaves_no_session(server):
    with taking(server, 0.2):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/v1/autocomplete",
                json={"text": "gone", "model": "slow", "max_words": 2, "session": "s6"},
                timeout=0.1,
            )
        assert left(server) == (0, 0)


def test_the_client_says_what_became_of_it(server):
    async def main():
        async with AsyncClient(server.url) as client:
            old = asyncio.create_task(client.autocomplete("of t", model="slow", max_words=2, session="s7"))
            await asyncio.sleep(0.1)
            return old, await client.autocomplete("of th", model="slow", max_words=2, session="s7")

    with taking(server, 0.1):
        old, new = asyncio.run(main())
    assert isinstance(old.exception(), SupersededError)
    assert new.prefix == "th"


def test_answers_under_load_are_those_of_an_idle_service(server):
    texts = ["the c", "a d", "on the m", "of ", "r", ""] * 4
    options = [{"model": "chars", "max_steps": 40}, {"model": "mixture", "max_words": 3}, {"fuzzy": 1}]
    bodies = [{"text": text, "max_steps": 64, **options[n % 3]} for n, text in enumerate(texts)]

    async def main(at_once):
        places = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(base_url=server.url, timeout=10) as client:

            async def one(body):
                async with places:
                    return (await client.post("/v1/autocomplete", json=body)).content

            return await asyncio.gather(*map(one, bodies))

    assert asyncio.run(main(1)) == asyncio.run(main(len(bodies)))
