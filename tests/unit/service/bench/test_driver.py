"""Loads on scripted servers."""

import asyncio
import signal
import socket
import time

import pytest

from service.bench.driver import run_load
from service.bench.plan import ClosedLoop, LoadSettings, OpenLoop, Request, Target
from service.bench.results import summarise_load
from tests.support.http import EVENTS, answering, chunk, token_event, whole

NOTHING = Request("/x", b"{}")
pytestmark = pytest.mark.timeout(method="thread")  # the clock needs SIGALRM itself


def run(answer, load, *, watch=None, requests=(NOTHING,), **terms):
    """Run a load on a server that answers with `answer`, and return the recording."""
    with answering(answer) as url:
        return run_load(Target.parse(url), requests, load, LoadSettings(**terms), watch=watch)


async def fine(writer, _number, _request):
    writer.write(whole())


def stalling(at, stall_s):
    """Server that stalls at one request."""

    async def answer(writer, number, _request):
        if number == at:
            time.sleep(stall_s)  # noqa: ASYNC251 - blocks all other replies
        writer.write(whole())

    return answer


def test_a_stall_is_seen_by_all_who_come_meanwhile():
    """No coordinated omission: 60 of 200 requests were due during the stall and count as late."""
    load = OpenLoop(200, arrivals="constant")
    summary = summarise_load(run(stalling(50, 0.3), load, num_requests=200))
    assert summary.latency_ms.p99 > 270
    assert summary.latency_ms.p90 > 100
    assert summary.answered == 200


def test_a_closed_loop_omits_most_of_it():
    """A single client has one stalled request, so a closed loop does not measure latency."""
    summary = summarise_load(run(stalling(50, 0.3), ClosedLoop(1), num_requests=200))
    assert summary.latency_ms.max > 290
    assert summary.latency_ms.p99 < 150


def test_an_open_loop_does_not_wait_for_answers():
    async def slow(writer, _number, _request):
        await asyncio.sleep(0.2)
        writer.write(whole())

    recording = run(slow, OpenLoop(100, arrivals="constant"), num_requests=30)
    sent = sorted(seen.sent_s for seen in recording.observations)
    assert sent[-1] - sent[0] < 0.45  # 0.29 s on an idle machine; 6 s if requests were sequential
    assert len(recording.observations) == 30


def test_a_closed_loop_keeps_so_many_requests_under_way():
    under_way, most = 0, 0

    async def counting(writer, _number, _request):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        writer.write(whole())

    recording = run(counting, ClosedLoop(4), num_requests=60)
    assert most == 4
    assert len(recording.observations) == 60


def test_a_closed_loop_ends_in_time():
    recording = run(fine, ClosedLoop(2), duration_s=0.2, warmup_s=0.1)
    assert recording.ended_s - recording.started_s < 1
    assert 0 < recording.num_due < len(recording.observations)
    assert summarise_load(recording).duration_s == pytest.approx(0.2)


def test_requests_are_sent_in_turn():
    bodies = []

    async def noting(writer, _number, request):
        bodies.append(request.rpartition(b"\r\n")[2])
        writer.write(whole())

    run(noting, ClosedLoop(1), requests=[Request("", b"1"), Request("", b"2")], num_requests=5)
    assert bodies == [b"1", b"2", b"1", b"2", b"1"]


def test_tokens_of_a_stream_are_timed():
    async def tokens(writer, _number, _request):
        writer.write(EVENTS)
        for pause_s in (0.05, 0.03, 0.03):
            await asyncio.sleep(pause_s)
            writer.write(token_event())
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    summary = summarise_load(run(tokens, ClosedLoop(1), num_requests=3))
    assert 45 < summary.ttft_ms.p50 < 200
    assert summary.itl_ms.count == 6
    assert 25 < summary.itl_ms.p50 < 150
    assert summary.tokens_per_s * summary.duration_s == pytest.approx(9)


def answer_of(data, *, close=False):
    async def answer(writer, _number, _request):
        writer.write(data)
        if close:
            await writer.drain()
            writer.close()

    return answer


@pytest.mark.parametrize(
    ("data", "close", "kind", "example"),
    [
        (whole(b'{"error": {"message": "full"}}', "429 Too Many"), False, "http_429", "full"),
        (b"", True, "cut", "before the end"),
        (whole(b"12345")[:-2], True, "cut", "before the end"),
        (EVENTS + token_event(), True, "cut", "before the end"),
        (b"SSH-2.0-OpenSSH\r\n", False, "protocol", "not HTTP"),
        (EVENTS + chunk(b'data: {"error": {"message": "late"}}\n\n') + chunk(b""), False, "stream", "late"),
        (b"", False, "timeout", "no reply within 0.2 s"),
    ],
)
def test_errors_are_told_apart(data, close, kind, example):
    summary = summarise_load(run(answer_of(data, close=close), ClosedLoop(1), num_requests=1, timeout_s=0.2))
    assert list(summary.errors) == [kind]
    assert example in summary.errors[kind].example
    assert summary.answered == 0


def test_nobody_listening_is_an_error_too():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        recording = run_load(Target.parse(url), [Request("")], OpenLoop(50), LoadSettings(num_requests=5))
    assert summarise_load(recording).errors["refused"].count == 5


def test_an_answer_may_end_with_its_connection():
    answer = answer_of(b"HTTP/1.1 200 OK\r\n\r\nall there is", close=True)
    assert summarise_load(run(answer, ClosedLoop(1), num_requests=2)).answered == 2


def test_connections_are_kept_and_closed_ones_replaced():
    writers = set()

    async def answer(writer, number, _request):
        writers.add(writer)
        writer.write(whole(headers="connection: close\r\n" if number == 3 else ""))
        if number == 3:
            await writer.drain()
            writer.close()

    summary = summarise_load(run(answer, ClosedLoop(1), num_requests=8))
    assert summary.answered == 8
    assert len(writers) == 2


def test_a_bound_on_connections_is_said_when_it_was_the_limit():
    async def slow(writer, _number, _request):
        await asyncio.sleep(0.02)
        writer.write(whole())

    load = OpenLoop(200, arrivals="constant")
    summary = summarise_load(run(slow, load, num_requests=40, max_connections=2))
    assert summary.generator.waited_for_connection > 20
    assert any("waited for one of the 2 connections" in reason for reason in summary.invalid_because)
    assert summary.latency_ms.max > 100  # includes the wait


def test_interrupted_load_is_measured_until_then():
    async def fifty(writer, number, _request):
        if number < 50:
            writer.write(whole())

    def interrupt(recording):
        if recording.num_due == 50:
            signal.raise_signal(signal.SIGINT)

    recording = run(fifty, OpenLoop(200), watch=interrupt, duration_s=60)
    summary = summarise_load(recording)
    assert recording.interrupted
    assert summary.answered == 50
    assert summary.errors["unfinished"].count > 0
