"""Bodies that are read before it is known who answers."""

import asyncio

from service.middleware.limits import RECEIVE_TIMEOUT
from service.workers.peers import read_body


def message(body, *, more=False):
    return {"type": "http.request", "body": body, "more_body": more}


def read(messages, *, max_bytes=10, state=None, headers=()):
    """The body, and all that is received after it has been read."""

    async def main():
        left = iter(messages)

        async def receive():
            return next(left)

        scope = {"state": state or {}, "headers": headers}
        body, again = await read_body(scope, receive, max_bytes=max_bytes)
        received = []
        while True:
            try:
                received.append(await again())
            except RuntimeError:  # nothing is left
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


def test_one_that_is_announced_too_long_is_not_waited_for():
    """It was held until its time was over, in a service of several workers."""
    messages = [message(b"12", more=True)]
    assert read(messages, headers=[(b"content-length", b"1000000000000000000")]) == (None, messages)
    assert read([message(b"")], headers=[(b"content-length", b"0010")]) == (b"", [message(b"")])


def test_one_that_is_too_slow_is_left_to_who_refuses_it():
    messages = [message(b"12", more=True), message(b"3")]
    assert read(messages, state={RECEIVE_TIMEOUT: 30}) == (None, messages)


def test_one_whose_client_has_gone_is_left_alone():
    messages = [message(b"12", more=True), {"type": "http.disconnect"}]
    assert read(messages) == (None, messages)
