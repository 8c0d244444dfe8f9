"""Refused request heads, and error replies without local paths."""

import asyncio
from collections import deque
from unittest.mock import Mock

import pytest

from models.errors import FormatError, InputError, IntegrityError, ModelNotFoundError, RegistryError
from service.api_errors import error_body
from service.http_protocol import GuardedProtocol, _continue, _send_whole, head_error

HOST = (b"host", b"a")


def status_of(*headers, version="1.1"):
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    fault = head_error(headers.count(HOST), codings, version)
    return None if fault is None else int(fault[0])


@pytest.mark.parametrize(
    ("coding", "status"),
    [
        (b"chunked", None),
        (b"\tChunked ", None),
        (b"gzip, chunked", 501),
        (b"chunked, chunked", 400),
        (b"chunked, gzip", 400),
        (b"gzip", 400),
        (b"chunked;a=b", 400),
        (b"", 400),
    ],
)
def test_chunked_is_the_only_coding(coding, status):
    assert status_of(HOST, (b"transfer-encoding", coding)) == status
    assert status_of(HOST, (b"transfer-encoding", coding), version="1.0") == 400


def test_codings_of_several_headers_are_one_list():
    gzip, chunked = (b"transfer-encoding", b"gzip"), (b"transfer-encoding", b"chunked")
    assert (status_of(HOST, gzip, chunked), status_of(HOST, chunked, chunked)) == (501, 400)


@pytest.mark.parametrize(("version", "statuses"), [("1.1", (400, None, 400)), ("1.0", (None, None, 400))])
def test_there_is_one_host(version, statuses):
    assert tuple(status_of(*[HOST] * number, version=version) for number in range(3)) == statuses


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FormatError("/srv/models/lstm/config.json", "is damaged"), "config.json: is damaged"),
        (
            RegistryError("cannot read the registry /srv/models: denied"),
            "cannot read the registry models: denied",
        ),
        (
            ModelNotFoundError("no model 'a' in /srv/x/registry; there are: b"),
            "no model 'a' in registry; there are: b",
        ),
        (
            RegistryError(
                "cannot read s3://bucket/all/.profiles/a.json: Could not connect to the endpoint URL: "
                '"http://10.0.0.9:9000/bucket/all/.profiles/a.json"'
            ),
            "cannot read a.json: Could not connect to the endpoint URL: …",
        ),
        (
            RegistryError("cannot list s3://bucket/all: User: arn:aws:iam::12:user/ann is not authorized"),
            "cannot list all: User: … is not authorized",
        ),
        (IntegrityError("lstm/versions/1/a.bin differs"), "lstm/versions/1/a.bin differs"),
    ],
)
def test_folders_are_not_told(error, told):
    assert error_body(error).message == told


def test_paths_given_by_the_client_are_not_hidden():
    assert error_body(InputError("stop is '/a/b/c'")).message == "stop is '/a/b/c'"


def continued(end):
    """Start a coroutine that waits for two futures, continue it in a task, and return what it noted."""
    noted = []

    async def answer(first, second):
        try:
            noted.append(await first)
            noted.append(await second)
        except (ValueError, asyncio.CancelledError) as error:
            noted.append(type(error).__name__)
        noted.append(asyncio.current_task() is not None)

    async def main():
        first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
        begun = answer(first, second)
        task = asyncio.create_task(_continue(begun, begun.send(None)))
        first.set_result(1)
        await asyncio.sleep(0.01)
        end(second, task)
        await asyncio.wait([task])

    asyncio.run(main())
    return noted


def test_a_started_answer_goes_on_in_a_task():
    assert continued(lambda future, _: future.set_result(2)) == [1, 2, True]


def test_the_error_of_a_future_reaches_a_started_answer():
    assert continued(lambda future, _: future.set_exception(ValueError())) == [1, "ValueError", True]


def test_a_cancellation_reaches_a_started_answer():
    assert continued(lambda _, task: task.cancel()) == [1, "CancelledError", True]


@pytest.mark.parametrize(
    ("draining", "keep_alive"), [(False, True), (False, False), (True, True), (True, False)]
)
def test_a_reply_in_one_write_says_once_that_the_connection_closes(draining, keep_alive):
    closing, transport = draining or not keep_alive, Mock()
    cycle = Mock(
        keep_alive=keep_alive,
        transport=transport,
        disconnected=False,
        flow=Mock(write_paused=False),
        default_headers=[(b"date", b"today"), *([(b"connection", b"close")] if draining else [])],
    )
    asyncio.run(_send_whole(cycle, b"HTTP/1.1 200 OK\r\n", b"{}"))
    (sent,) = transport.write.call_args.args
    assert (sent.count(b"connection: close"), transport.close.called) == (int(closing), closing)
    assert sent.endswith(b"\r\n\r\n{}")
    assert b"date: today\r\n" in sent


class TimedLoop:
    """Event loop whose clock the test sets; `timers` are the delays of the timers made."""

    def __init__(self):
        self.now_s, self.timers = 0.0, []

    def time(self):
        return self.now_s

    def call_later(self, seconds, _function):
        self.timers.append(seconds)
        return Mock()


def test_a_connection_is_closed_when_it_was_idle_since_its_last_reply_with_one_timer():
    protocol, loop, transport = GuardedProtocol.__new__(GuardedProtocol), TimedLoop(), Mock()
    transport.is_closing.return_value = False
    protocol.loop, protocol.transport, protocol.flow = loop, transport, Mock()
    protocol.server_state, protocol.pipeline, protocol.connections = Mock(total_requests=0), deque(), set()
    protocol.timeout_keep_alive, protocol.timeout_keep_alive_task = 5, None
    for loop.now_s in (0.0, 1.0, 2.0):  # three requests
        protocol._unset_keepalive_if_required()
        protocol.on_response_complete()
    assert loop.timers == [5]
    loop.now_s = 5.0
    protocol.timeout_keep_alive_handler()  # idle for three seconds
    assert (loop.timers, transport.close.called) == ([5, 2.0], False)
    loop.now_s = 7.0
    protocol._unset_keepalive_if_required()  # the next request has begun
    protocol.timeout_keep_alive_handler()
    assert (protocol.timeout_keep_alive_task, transport.close.called) == (None, False)
    protocol.on_response_complete()
    loop.now_s = 12.0
    protocol.timeout_keep_alive_handler()
    assert (loop.timers, transport.close.called) == ([5, 2.0, 5], True)
