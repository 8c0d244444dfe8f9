"""HTTP between workers: what is passed on, and what becomes of an answer that is cut off."""

import asyncio
import contextlib

import pytest

from service.workers import peers
from service.workers.peers import Peer, PeerConnectionError, PeerResponse, encode_request, encode_scope

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-shape: 1,2\r\ndate: now\r\n\r\nhi"


@contextlib.asynccontextmanager
async def worker(folder, *answers):
    """A worker whose connections give the answers, one after the other, and hang up after an empty one."""
    left, connections = list(answers), []

    async def connected(reader, writer):
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                answer = left.pop(0)
                writer.write(answer)
                await writer.drain()
                if answer != WHOLE:
                    break
        writer.close()

    server = await asyncio.start_unix_server(connected, folder / "s")
    try:
        yield Peer(folder / "s"), connections
    finally:
        server.close()
        for writer in connections:
            writer.close()
        await asyncio.sleep(0.01)


def run(folder, answers, main):
    async def whole():
        async with worker(folder, *answers) as (sibling, connections):
            return await main(sibling), len(connections)

    return asyncio.run(whole())


def test_an_answer_comes_with_its_headers_but_those_of_the_connection(tmp_path):
    answer, _ = run(tmp_path, [WHOLE], lambda sibling: sibling.get("/"))
    assert (answer.status, answer.body) == (200, b"hi")
    assert answer.headers == [(b"content-length", b"2"), (b"x-shape", b"1,2")]


def test_connections_are_used_again(tmp_path):
    async def main(sibling):
        return [(await sibling.get("/")).body for _ in range(3)]

    assert run(tmp_path, [WHOLE] * 3, main) == ([b"hi"] * 3, 1)


def test_a_kept_connection_that_was_closed_is_replaced(tmp_path):
    async def main(sibling):
        await sibling.get("/")
        return (await sibling.get("/")).body

    closing = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
    assert run(tmp_path, [closing, WHOLE], main) == (b"hi", 2)


def test_chunks_are_passed_on_as_they_come(tmp_path):
    seen = []

    async def send(message):
        seen.append(message)

    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    run(tmp_path, [chunked], lambda sibling: sibling.exchange(encode_request("GET", b"/", []), send))
    assert [message["type"] for message in seen[:2]] == ["http.response.start", "http.response.body"]
    assert b"".join(message["body"] for message in seen[1:]) == b"abc"
    assert [message["more_body"] for message in seen[1:]][-1] is False
    assert seen[0]["headers"] == []


@pytest.mark.parametrize(
    ("answer", "begun"),
    [(b"", False), (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi", True), (b"nonsense\r\n\r\n", False)],
)
def test_an_answer_that_is_not_whole_is_told_of(tmp_path, answer, begun):
    with pytest.raises(PeerConnectionError) as raised:
        run(tmp_path, [answer], lambda sibling: sibling.get("/"))
    assert raised.value.reply_begun is begun


def test_an_error_is_no_answer_to_what_workers_ask(tmp_path):
    failing = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\nno"
    with pytest.raises(PeerConnectionError, match="status 500"):
        run(tmp_path, [failing], lambda sibling: sibling.get("/"))


def test_one_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "_REPLY_TIMEOUT_S", 0.05)

    async def hang(reader, writer):
        await reader.read()  # until whoever asked hangs up
        writer.close()

    async def main():
        async with await asyncio.start_unix_server(hang, tmp_path / "s"):
            try:
                await Peer(tmp_path / "s").get("/")
            finally:
                await asyncio.sleep(0.05)

    with pytest.raises(PeerConnectionError, match="no answer in"):
        asyncio.run(main())


def test_an_answer_that_nobody_waits_for_any_more_is_told_to_no_other(tmp_path, monkeypatch):
    received = peers._PeerConnection.data_received

    async def main(sibling):
        gone = asyncio.create_task(sibling.get("/"))

        def too_late(self, data):
            received(self, data)
            gone.cancel()

        monkeypatch.setattr(peers._PeerConnection, "data_received", too_late)
        await asyncio.gather(gone, return_exceptions=True)
        monkeypatch.undo()
        return (await sibling.get("/")).body

    assert run(tmp_path, [WHOLE] * 2, main) == (b"hi", 2)


def test_nobody_there_is_told_of(tmp_path):
    with pytest.raises(PeerConnectionError, match="No such file"):
        asyncio.run(Peer(tmp_path / "none").get("/"))


def test_a_request_is_encoded_anew_for_its_link():
    scope = {
        "method": "HEAD",
        "raw_path": b"/v1/a%20b",
        "query_string": b"c=d",
        "headers": [
            (b"host", b"h"),
            (b"transfer-encoding", b"chunked"),
            (b"connection", b"close"),
            (b"x-a", b"1"),
        ],
    }
    assert encode_scope(scope, b"{}") == (
        b"GET /v1/a%20b?c=d HTTP/1.1\r\nhost: h\r\nx-a: 1\r\ncontent-length: 2\r\n\r\n{}"
    )


def test_a_request_of_http_1_0_without_a_host_may_pass_over_a_link():
    """HTTP/1.1, which is spoken there, wants one."""
    scope = {"method": "GET", "raw_path": b"/", "query_string": b"", "headers": []}
    assert encode_scope(scope, b"").startswith(b"GET / HTTP/1.1\r\nhost: \r\n")


def test_an_application_may_answer_into_an_answer():
    async def main():
        answer = PeerResponse()
        await answer.send({"type": "http.response.start", "status": 404, "headers": [(b"a", b"b")]})
        await answer.send({"type": "http.response.body", "body": b"x", "more_body": True})
        await answer.send({"type": "http.response.body", "body": b"y"})
        return answer

    assert asyncio.run(main()) == PeerResponse(404, [(b"a", b"b")], b"xy")
