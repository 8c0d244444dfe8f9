"""Reading a request's body before it is known who answers it."""

from starlette.types import Message, Receive, Scope

from service.routes.limits import RECEIVE_TIMEOUT, content_length


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int) -> tuple[bytes | None, Receive]:
    """The body, and what an application that is to answer after all receives: the same, and then what comes.

    Returns:
        None in place of a body that is too long, too slow, or cut off: the application finds out, and refuses it.
    """
    if content_length(scope) > max_bytes:
        return None, receive
    kept: list[Message] = []
    size = 0
    while True:
        message = await receive()
        kept.append(message)
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or size > max_bytes:
            return None, _replay(kept, receive)
        if not message.get("more_body", False):
            break
        if scope["state"].get(RECEIVE_TIMEOUT):
            return None, _replay(kept, receive)
    body = kept[0].get("body", b"") if len(kept) == 1 else b"".join(one.get("body", b"") for one in kept)
    return body, _replay([{"type": "http.request", "body": body, "more_body": False}], receive)


def _replay(kept: list[Message], receive: Receive) -> Receive:
    left = iter(kept)

    async def again() -> Message:
        message = next(left, None)
        return await receive() if message is None else message

    return again
