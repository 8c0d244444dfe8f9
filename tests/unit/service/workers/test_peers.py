"""HTTP between workers, routing by session, and early reading of bodies."""

import asyncio
import contextlib
import json

import pytest

from service.http_client import ExchangeError, encode_request
from service.middleware.guarded_request import RECEIVE_TIMEOUT, HeldBodies
from service.workers import peers
from service.workers.peers import (
    AFFINITY_PATHS,
    Peer,
    PeerMiddleware,
    PeerResponse,
    affine_worker,
    encode_scope,
)

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-shape: 1,2\r\ndate: now\r\n\r\nhi"


@contextlib.asynccontextmanager
async def worker(folder, *answers):
    """Worker that sends the given answers in order and closes the connection after an incomplete one."""
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
    with pytest.raises(ExchangeError) as raised:
        run(tmp_path, [answer], lambda sibling: sibling.get("/"))
    assert raised.value.reply_begun is begun


def test_an_error_is_no_answer_to_what_workers_ask(tmp_path):
    failing = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\nno"
    with pytest.raises(ExchangeError, match="status 500"):
        run(tmp_path, [failing], lambda sibling: sibling.get("/"))


def test_one_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "_REPLY_TIMEOUT_S", 0.05)

    async def hang(reader, writer):
        await reader.read()  # until the peer closes the connection
        writer.close()

    async def main():
        async with await asyncio.start_unix_server(hang, tmp_path / "s"):
            try:
                await Peer(tmp_path / "s").get("/")
            finally:
                await asyncio.sleep(0.05)

    with pytest.raises(ExchangeError, match="no reply in"):
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
    with pytest.raises(ExchangeError, match="No such file"):
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
    """Links use HTTP/1.1, which requires a host header."""
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


SIZE = 5


WORKERS = [f"host-{number}" for number in range(SIZE)]


def scope(path, *, session=None, client="10.0.0.1"):
    headers = [] if session is None else [(b"x-gramophone-session", session)]
    return {"path": path, "headers": headers, "client": (client, 1)}


def home(request, sent):
    return affine_worker(request, sent, WORKERS)


def handle(process):
    return f"{process}.a1b2c3.kJ9dXw0hT2mQvB7s"


def body(**fields):
    return json.dumps(fields).encode()


def test_states_are_with_the_process_that_their_handle_names():
    asked = body(continuations=[{"state": handle("host-3"), "text": "a"}])
    assert home(scope("/v1/states/advance"), asked) == 3
    assert home(scope("/v1/states/next"), body(states=[handle("host-4"), handle("host-1")])) == 4


def test_states_of_other_services_are_answered_where_they_come():
    assert home(scope("/v1/states/free"), body(states=[handle("other-3")])) is None
    assert home(scope("/v1/states/free"), b"no handle at all") is None


def test_states_of_one_client_are_opened_by_one_worker():
    opened = {home(scope("/v1/states"), body(context=text)) for text in ("a", "b", "c")}
    assert len(opened) == 1
    clients = {home(scope("/v1/states", client=f"10.0.0.{i}"), b"{}") for i in range(50)}
    assert clients == set(range(SIZE))


def test_a_client_may_name_itself():
    named = {home(scope("/v1/states", session=b"d7", client=f"10.0.0.{i}"), b"{}") for i in range(20)}
    assert len(named) == 1


def session_home(name):
    return home(scope("/v1/autocomplete"), body(text="", session=name))


def test_a_session_may_be_written_as_some_clients_escape_it():
    escaped = rb'{"text": "", "session": "ann\u002Bx\u0040example.org"}'
    assert home(scope("/v1/autocomplete"), escaped) == session_home("ann+x@example.org")
    escaped_key = rb'{"text": "", "\u0073ession": "ann"}'
    assert home(scope("/v1/autocomplete"), escaped_key) == session_home("ann")
    assert home(scope("/v1/autocomplete"), rb'{"text": "", "session": "ann\uD800"}') is not None


def test_a_session_is_the_one_that_the_request_is_answered_for():
    """The last duplicate key counts, as in body validation; keys of inner objects do not."""
    for other in (f"s{i}" for i in range(20)):
        twice = f'{{"text": "", "session": "{other}", "session": "ann"}}'.encode()
        assert home(scope("/v1/autocomplete"), twice) == session_home("ann")
        within = body(dictionary=[{"text": "a", "session": other}], session="ann")
        assert home(scope("/v1/autocomplete"), within) == session_home("ann")
    for wrong in (
        rb'{"session": "ann\uD8zz"}',
        b'["session"]',
        b'{"session": 1}',
        b'{"session"' + b"[" * 100_000,
    ):
        assert home(scope("/v1/autocomplete"), wrong) is None


def test_users_are_known_to_every_worker():
    assert home(scope("/v1/autocomplete"), body(text="", user="ann")) is None
    assert "/v1/autocomplete/users/ann/accepted" not in AFFINITY_PATHS


def test_sessions_are_spread_over_the_workers():
    fallen = {home(scope("/v1/autocomplete"), body(text="", session=f"s{i}")) for i in range(50)}
    assert fallen == set(range(SIZE))


def test_words_of_a_text_name_nobody():
    text = 'He said "user": "ann", "session": "s1"'
    assert home(scope("/v1/autocomplete"), body(text=text)) is None
    assert home(scope("/v1/autocomplete"), body(text="", dictionary=["user", "ann"])) is None


def test_reranking_is_with_its_session_only_if_it_has_one():
    lists = [{"candidates": [{"text": "a"}]}]
    assert home(scope("/v1/rerank"), body(lists=lists)) is None
    assert home(scope("/v1/rerank"), body(lists=lists, commit_eos=True)) is None
    session = f"{handle('host-2')},{handle('host-2')}"
    assert home(scope("/v1/rerank"), body(lists=[*lists, {"session": session}])) == 2
    begun = body(lists=[{"commit": "a", "session": None}])
    assert home(scope("/v1/rerank"), begun) == home(scope("/v1/states"), b"{}")


def test_all_else_is_answered_where_it_comes():
    others = {"/v1/score", "/v1/rerank/tune", "/v1/autocompletes", "/health/live", "/metrics", "/"}
    assert not others & AFFINITY_PATHS


def message(body, *, more=False):
    return {"type": "http.request", "body": body, "more_body": more}


def read(messages, *, max_bytes=10, held=None, state=None, headers=()):
    """Body, and messages received after it was read."""

    async def main():
        left = iter(messages)

        async def receive():
            return next(left)

        scope = {"state": state or {}, "headers": headers}
        reader = PeerMiddleware(None, None, {}, None, max_bytes, held or HeldBodies(1 << 20))
        body, again = await reader.read_body(scope, receive)
        received = []
        while True:
            try:
                received.append(await again())
            except RuntimeError:  # no messages left
                return body, received

    return asyncio.run(main())


def test_a_body_is_joined_and_received_again_before_what_comes_after():
    gone = {"type": "http.disconnect"}
    body, received = read([message(b"ab", more=True), message(b"c"), gone])
    assert body == b"abc"
    assert received == [message(b"abc"), gone]


def test_one_that_is_too_long_is_left_to_who_refuses_it():
    messages = [message(b"123456", more=True), message(b"789012", more=True), message(b"3")]
    assert read(messages) == (None, messages)


def test_one_beyond_the_memory_of_all_bodies_is_left_to_who_refuses_it():
    held = HeldBodies(1 << 17)
    held.add("", 1 << 17)
    messages = [message(bytes(1 << 17), more=True), message(b"3")]
    assert read(messages, max_bytes=1 << 20, held=held) == (None, messages)
    assert held.used == 1 << 17


def test_one_that_is_announced_too_long_is_not_waited_for():
    """Regression: a service with several workers held such a request until its deadline."""
    messages = [message(b"12", more=True)]
    assert read(messages, headers=[(b"content-length", b"1000000000000000000")]) == (None, messages)
    assert read([message(b"")], headers=[(b"content-length", b"0010")]) == (b"", [message(b"")])


def test_one_that_is_too_slow_is_left_to_who_refuses_it():
    messages = [message(b"12", more=True), message(b"3")]
    assert read(messages, state={RECEIVE_TIMEOUT: 30}) == (None, messages)


def test_one_whose_client_has_gone_is_left_alone():
    messages = [message(b"12", more=True), {"type": "http.disconnect"}]
    assert read(messages) == (None, messages)
