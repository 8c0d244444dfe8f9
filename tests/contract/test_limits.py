"""Limits on connections, headers and time; low priority of heavy requests; replies under load."""

import asyncio
import contextlib
import json
import socket
import time

import httpx
import pytest

from gramophone_client import AsyncClient
from service.engine.job import Job
from service.engine.scheduler import Scheduler
from service.settings import Settings
from tests.support.http import answer, answers, asked, connect
from tests.support.services import running

HEAD = b"POST /v1/next-token HTTP/1.1\r\nhost: a\r\n"
BODY = b'{"context": "the"}'
WHOLE = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
LIVE = b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.fixture(scope="module")
def impatient(registry):
    """Run a service with half a second of patience, four connections and small heads."""
    settings = Settings(
        registry=registry.root,
        models=("mixture",),
        body_timeout_s=0.5,
        max_connections=4,
        max_header_bytes=2048,
        max_held_body_bytes=200_000,
        keep_alive_timeout_s=1,
    )
    with running(settings) as server:
        yield server


@pytest.fixture
def url(impatient):
    """Return its address, once the connections of the previous test are closed."""
    for _ in range(300):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{impatient.url}/v1/models", headers={"connection": "close"}).status_code == 200:
                return impatient.url
        time.sleep(0.02)
    return pytest.fail("connections were left behind")


def rejections(url, reason):
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    name = f'gramophone_rejections_total{{reason="{reason}"}} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_a_body_that_stops_coming_is_answered_408(url):
    before = time.monotonic()
    told = asked(url, HEAD + b"content-length: 100\r\n\r\n{")
    assert 0.4 < time.monotonic() - before < 3
    assert (told.status, told.error["code"]) == (408, "body_too_slow")
    assert "0.5 s" in told.error["message"]
    assert told.headers["connection"] == "close"
    assert rejections(url, "body_too_slow") == 1


def test_drops_of_a_body_do_not_buy_time(url):
    with connect(url) as connection:
        connection.sendall(HEAD + b"content-length: 100\r\n\r\n")
        before = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - before < 1:
                connection.sendall(b" ")
                time.sleep(0.1)
        assert answer(connection).status == 408


def test_a_head_that_stops_coming_is_answered_408(url):
    before = time.monotonic()
    told = asked(url, HEAD)
    assert 0.4 < time.monotonic() - before < 3
    assert (told.status, told.error["code"]) == (408, "bad_http")


def test_a_connection_that_asks_nothing_is_closed(url):
    before = time.monotonic()
    assert asked(url, b"").status == 0
    assert 0.4 < time.monotonic() - before < 3


def test_an_idle_connection_is_closed_after_its_time(url):
    with connect(url) as connection:
        connection.sendall(WHOLE)
        assert answer(connection).status == 200
        before = time.monotonic()
        assert connection.recv(1) == b""
        assert 0.8 < time.monotonic() - before < 4


def test_an_empty_line_does_not_keep_a_connection(url):
    with connect(url) as connection:
        connection.sendall(WHOLE)
        assert answer(connection).status == 200
        connection.sendall(b"\r\n")
        before = time.monotonic()
        assert connection.recv(1) == b""
    assert time.monotonic() - before < 3


def test_a_long_head_is_refused_whether_it_ends_or_not(url):
    for data in (
        HEAD + b"x-long: " + b"a" * 3000 + b"\r\n\r\n",
        HEAD + b"x-long: " + b"a" * 500_000,
        HEAD + b"a: b\r\n" * 1000 + b"\r\n",
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
    ):
        told = asked(url, data)
        assert told.status in {431, 0}  # 0: reset while data was still arriving
        if told.status:
            assert "2048 bytes" in told.error["message"]
    assert asked(url, HEAD + b"x-long: " + b"a" * 3000 + b"\r\n\r\n").status == 431


def test_a_large_body_does_not_count_as_head(url):
    body = b'{"context": "' + b" " * 10_000 + b'the"}'
    request = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    with connect(url) as connection:
        for _ in range(3):
            connection.sendall(request)
            assert answer(connection).status == 200
        connection.sendall(request + WHOLE[:10])
        assert answer(connection).status == 200
        connection.sendall(WHOLE[10:])
        assert answer(connection).status == 200


def test_bytes_that_are_not_http_get_a_bad_http_error(url):
    told = asked(url, b"hello\r\n\r\n")
    assert (told.status, told.error["code"]) == (400, "bad_http")


def test_connections_past_the_limit_are_told_to_come_back(url):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(url)) for _ in range(4)]
        for connection in held:  # the service counts a connection once it has answered
            connection.sendall(LIVE)
            assert answer(connection).status == 200
        told = asked(url, WHOLE)
        assert (told.status, told.error["code"]) == (503, "too_many_connections")
        assert int(told.headers["retry-after"]) >= 1
        assert told.headers["connection"] == "close"
        assert asked(url, LIVE).status == 200
        held[0].sendall(WHOLE)
        assert answer(held[0]).status == 200
    assert rejections(url, "connections") >= 1


def test_far_past_the_limit_they_are_cut_off(url):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(url)) for _ in range(12)]
        ended = 0
        for connection in held:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(LIVE)
            ended += answer(connection).status == 0
        assert ended == 4


def chunked(trailers=b""):
    return HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n%b" % (len(BODY), BODY, trailers)


def test_trailers_without_end_are_refused(url):
    """Regression: any number of trailers was stored."""
    with connect(url) as connection:
        connection.sendall(chunked())
        time.sleep(0.1)  # so they arrive in a separate read
        connection.sendall(b"a: b\r\n" * 500)
        assert answer(connection).status == 431


def test_trailers_do_not_pass_for_headers(url):
    assert asked(url, chunked(b"content-encoding: gzip\r\n\r\n")).status == 200


def test_invalid_chunk_after_the_reply_gets_no_second_reply(url):
    """The client would take a second reply for the reply to its next request."""
    with connect(url) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        assert answer(connection).status == 404
        connection.sendall(b"no chunk\r\n")
        assert connection.recv(1000) == b""


def test_nothing_is_written_into_an_answer_that_is_under_way(url):
    """Regression: a refusal of the next request appeared in the middle of a stream."""
    body = b'{"max_tokens": 1000, "ignore_eos": true, "stream": true}'
    with connect(url) as connection:
        connection.sendall(
            b"POST /v1/generate HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        received = connection.recv(100)
        connection.sendall(b"hello\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            while some := connection.recv(65536):
                received += some
    before, refused, _ = received.partition(b"HTTP/1.1 400")
    assert not refused or before.endswith(b"0\r\n\r\n")


def test_an_endless_body_after_a_refusal_ends_the_connection(url):
    """After the reply, the rest of the body is read only for a limited time."""
    with connect(url) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        assert answer(connection).status == 404
        before = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - before < 5:
                connection.sendall(b"1\r\na\r\n")
                time.sleep(0.02)
        assert time.monotonic() - before < 3


DRAWN = {"prompt": "a", "max_tokens": 16, "model": "chars"}
HEAVY = {
    "beams": ("generate", {**DRAWN, "strategy": "beam", "num_beams": 64}),
    "samples": ("generate", {**DRAWN, "n": 64}),
    "best of": ("completions", {**DRAWN, "best_of": 64}),
    "prompts": ("completions", {**DRAWN, "prompt": ["a"] * 64}),
    "contexts": ("next-token", {"context": ["a"] * 100}),
    "echoed": (
        "completions",
        {**DRAWN, "prompt": ["a b"] * 40, "echo": True, "logprobs": 2, "max_tokens": 0},
    ),
    "candidates": (
        "rerank",
        {"lists": [{"context": "a " * 400, "candidates": [{"text": "a"}, {"text": "b"}] * 25}]},
    ),
    "compared": ("rerank", {"lists": [{"candidates": [{"text": str(i)} for i in range(100)]}], "mbr": "wer"}),
    "texts": ("score", {"texts": ["a"] * 100, "context": "a " * 400}),
}
LIGHT = {
    "beams": ("generate", {**DRAWN, "strategy": "beam", "num_beams": 2}),
    "sample": ("completions", {**DRAWN, "max_tokens": 200}),
    "contexts": ("next-token", {"context": ["a"] * 8}),
    "compared": ("rerank", {"lists": [{"candidates": [{"text": "a"}, {"text": "b"}]}], "mbr": "wer"}),
    "texts": ("score", {"texts": ["a"] * 8, "context": "a b", "model": "chars"}),
}


@pytest.fixture
def submitted(monkeypatch):
    """Record the jobs submitted to the engine."""
    jobs, submit = [], Scheduler.submit
    monkeypatch.setattr(Scheduler, "submit", lambda self, job: (jobs.append(job), submit(self, job))[1])
    monkeypatch.setattr("service.operations.operation._BULK_WORK", 600)  # small limits for small models
    return jobs


@pytest.mark.parametrize(("path", "body"), HEAVY.values(), ids=HEAVY)
def test_heavy_request_is_bulk(http, submitted, path, body):
    assert http.post(f"/v1/{path}", json=body).status_code == 200
    assert [job.options.bulk for job in submitted] == [True]


@pytest.mark.parametrize(("path", "body"), LIGHT.values(), ids=LIGHT)
def test_light_request_is_interactive(http, submitted, path, body):
    assert http.post(f"/v1/{path}", json=body).status_code == 200
    assert [job.options.bulk for job in submitted] == [False]


def score_of(client, number):
    """Send one of four kinds of request, different for every number."""
    text = " ".join(["the cat", "a dog ran", "on of the house"][: 1 + number % 3] * (1 + number % 5))
    kinds = (
        lambda: client.next_token(text, top_k=5),
        lambda: client.score([text, "the"], detail="token"),
        lambda: client.rerank([{"candidates": [{"text": text}, {"text": "a mat"}]}]),
        lambda: client.generate(text, seed=number, max_tokens=20, model="chars"),
    )
    return kinds[number % 4]()


def test_answers_under_load_are_those_of_an_idle_service(server):
    async def main():
        async with AsyncClient(server.url) as client:
            alone = [await score_of(client, number) for number in range(60)]
            together = await asyncio.gather(*(score_of(client, number) for number in range(60)))
            return alone, together

    alone, together = asyncio.run(main())
    assert alone == together


def test_long_bodies_are_rejected_while_others_fill_the_memory(url):
    head = HEAD + b"content-length: 150000\r\n\r\n"
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(connect(url)) for _ in range(2))
        first.sendall(head + bytes(140_000))
        time.sleep(0.1)
        second.sendall(head + bytes(140_000))
        told = answer(second)
        assert (told.status, told.error["code"]) == (429, "overloaded")
        assert "the maximum is 200000" in told.error["message"]
        assert asked(url, WHOLE).status == 200  # short ones are always accepted
        assert answer(first).status == 408
    assert rejections(url, "overloaded") == 1
    assert asked(url, head + bytes(150_000)).status == 400  # not JSON: there is room again


@pytest.mark.parametrize(("version", "status"), [(b"2.0", 505), (b"1.2", 400), (b"3.0", 400), (b"0.8", 400)])
def test_other_versions_are_refused(url, version, status):
    told = asked(url, b"POST /v1/score HTTP/" + version + b"\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
    assert (told.status, told.error["code"]) == (status, "bad_http")


@pytest.mark.parametrize(
    "framing",
    [
        (b"1;" + b"x" * 40_000 + b"\r\n{\r\n") * 10,
        b"0\r\n" + (b"x: " + b"y" * 2000 + b"\r\n") * 30 + b"\r\n",
        b"1\r\n{\r\n0\r\nx: " + b"y" * 50_000 + b"\r\n\r\n",
    ],
    ids=["extensions", "trailers", "a trailer"],
)
def test_bytes_around_a_body_are_limited_like_its_head(url, framing):
    head = b"POST /v1/score HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    assert asked(url, head + framing).status in {0, 431}


def test_a_body_in_chunks_of_a_byte_is_read(url):
    body = json.dumps({"texts": ["the cat " * 5000]}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"POST /v1/score HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    assert asked(url, head + chunks).status == 200


@pytest.fixture
def hurried(monkeypatch):
    """Let a delay of one request matter."""
    monkeypatch.setattr("service.middleware.guarded_request._MIN_DELAYED", 0)


@pytest.mark.parametrize("sent", [0, 10, len(WHOLE) - 2], ids=["connection", "head", "body"])
def test_the_time_that_a_client_takes_is_no_delay(url, hurried, sent):
    with connect(url) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(WHOLE[:sent])
        time.sleep(0.35)
        connection.sendall(WHOLE[sent:])
        assert answer(connection).status == 200


def test_the_time_of_earlier_requests_of_a_connection_is_no_delay(server, hurried):
    body = b'{"prompt": "the", "model": "slow", "max_tokens": 20}'
    request = (
        b"POST /v1/generate HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n%s\r\n" % (len(body), b"%s") + body
    )
    with connect(server.url) as connection:
        told = answers(connection, request % b"", request % b"connection: close\r\n")
    assert [one.status for one in told] == [200, 200]


def test_an_interactive_request_is_refused_while_others_are_old(server, monkeypatch):
    monkeypatch.setattr("service.engine.scheduler.MIN_LATE_JOBS", 1)
    jobs = server.app.state.services.engine.scheduler.admission.jobs
    before = rejections(server.url, "age")
    jobs.add(old := Job((None for _ in ()), print, deadline_s=1e9))  # submitted at 0 s
    try:
        told = asked(server.url, WHOLE)
    finally:
        jobs.discard(old)
    assert (told.status, told.error["code"], told.headers["retry-after"]) == (429, "overloaded", "1")
    assert "times as old" in told.error["message"]
    assert rejections(server.url, "age") == before + 1
