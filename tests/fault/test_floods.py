"""Hundreds of idle clients or of endless requests: other clients are served, and no resource runs out."""

import contextlib
import random
import resource
import time

import httpx
import pytest

from tests.support.http import answer, asked, connect
from tests.support.services import SCORE, crowd, faulty_service, is_open, made_up_registry, wait_until

LIMIT = 20
BODY = b'{"texts": ["the cat"]}'
HEAD = b"POST /v1/score HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(BODY)
WHOLE = HEAD + BODY


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    return made_up_registry(tmp_path_factory.mktemp("floods"))


@pytest.fixture(scope="module", params=[1, 2], ids=["lone", "workers"])
def few_files(request, registry, tmp_path_factory):
    """Run a service whose processes may open 200 files each, although its settings need more."""
    settings = {"GRAMOPHONE_BODY_TIMEOUT_S": "2"}
    folder = tmp_path_factory.mktemp("few")
    with faulty_service(registry, folder, workers=request.param, files=200, **settings) as service:
        yield service


@pytest.fixture(scope="module")
def small(registry, tmp_path_factory):
    """Run a service with a limit of twenty connections."""
    settings = {"GRAMOPHONE_BODY_TIMEOUT_S": "2", "GRAMOPHONE_MAX_CONNECTIONS": str(LIMIT)}
    with faulty_service(registry, tmp_path_factory.mktemp("small"), **settings) as service:
        yield service


@pytest.fixture
def resident(small):
    """A client that connected before the flood."""
    with httpx.Client(base_url=small.url, timeout=20) as client:
        wait_until(lambda: client.post("/v1/score", json=SCORE).status_code == 200)
        yield client


def is_served(client):
    return client.post("/v1/score", json=SCORE).status_code == 200


def test_idle_connections_ten_times_past_the_limit(small, resident):
    before = small.files()
    with crowd(small.url, 10 * LIMIT) as idle:
        assert all(is_served(resident) for _ in range(20))
        wait_until(lambda: sum(map(is_open, idle)) <= 2 * LIMIT)
        assert small.files() <= before + 2 * LIMIT
        told = asked(small.url, WHOLE)
        assert told.status in {0, 503}  # cut off, or rejected with Retry-After
        wait_until(small.serves_newcomers)  # idle connections have timed out
    assert is_served(resident)
    wait_until(lambda: small.files() <= before + 2)


@pytest.mark.parametrize("drip", [HEAD[:-2] + b"x-long: " + b"a" * 500, HEAD + BODY], ids=["heads", "bodies"])
def test_requests_that_drip(small, resident, drip):
    with contextlib.ExitStack() as stack:
        drips = [stack.enter_context(connect(small.url)) for _ in range(LIMIT - 4)]
        place, until_s = 0, time.monotonic() + 30
        while any(map(is_open, drips)):
            assert time.monotonic() < until_s
            start = len(drip) - 21 if drip.endswith(BODY) else 40
            piece = drip[: start + 1] if not place else drip[start + place : start + place + 1]
            for connection in drips:
                with contextlib.suppress(OSError):
                    connection.settimeout(1)
                    connection.sendall(piece if place < 12 else b"")
            assert is_served(resident)
            assert small.serves_newcomers()
            place += 1
            time.sleep(0.2)
            if place > 20:
                break
        statuses = [answer(connection).status for connection in drips]
    assert set(statuses) == {408}


def test_more_connections_than_files(few_files):
    before, cpu_s = few_files.files(), few_files.cpu_s()
    began_s = time.monotonic()
    with httpx.Client(base_url=few_files.url, timeout=20) as resident:
        assert is_served(resident)
        with crowd(few_files.url, 600) as idle:
            assert all(is_served(resident) for _ in range(20))
            wait_until(lambda: sum(map(is_open, idle)) <= 200)
            time.sleep(1)
            assert few_files.cpu_s() - cpu_s < 0.7 * (time.monotonic() - began_s) + 1  # no busy loop
            wait_until(few_files.serves_newcomers)
        assert is_served(resident)
    wait_until(lambda: few_files.files() <= before + 4)


def test_no_descriptor_is_left(few_files):
    """Descriptors are exhausted: accepting fails, and recovers once some are free."""
    normal = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in few_files.pids}
    with httpx.Client(base_url=few_files.url, timeout=20) as resident:
        assert is_served(resident)
        for pid, (_, hard) in normal.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, hard))  # all these numbers are taken
        try:
            with crowd(few_files.url, 50):
                cpu_s, began_s = few_files.cpu_s(), time.monotonic()
                while time.monotonic() < began_s + 2:
                    assert is_served(resident)
                    time.sleep(0.1)
                assert few_files.cpu_s() - cpu_s < 1
        finally:
            for pid, limits in normal.items():
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        wait_until(few_files.serves_newcomers)
        assert is_served(resident)


def garbage(generator):
    """Return bytes that begin as requests and become invalid somewhere."""
    whole = WHOLE * generator.randrange(3)
    place = generator.randrange(len(WHOLE))
    flipped = WHOLE[:place] + generator.randbytes(3) + WHOLE[place + 3 :]
    return whole + generator.choice([flipped, generator.randbytes(300), flipped + WHOLE, b"\r\n" * 500])


def test_pipelined_garbage(small, resident):
    before, generator = small.files(), random.Random(0)
    statuses = set()
    for _ in range(200):
        with connect(small.url) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(garbage(generator))
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):  # it may wait for the rest of a body
                statuses.add(answer(connection).status)
        assert is_served(resident)
    assert {200, 400} <= statuses <= {0, 200, 400, 404, 405, 408, 431, 503}
    wait_until(lambda: small.files() <= before + 2)
