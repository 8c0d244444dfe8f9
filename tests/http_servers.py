"""Servers that answer just what a test tells them to, byte for byte."""

import asyncio
import contextlib
import itertools
import threading

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def whole(body=b"{}", status="200 OK", headers=""):
    """An answer of known length."""
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def chunk(content):
    """A part of a chunked body; nothing ends it."""
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def token_event(text="a"):
    """A token as OpenAI's completions stream it."""
    return chunk(f'data: {{"choices": [{{"index": 0, "text": "{text}"}}]}}\n\n'.encode())


@contextlib.contextmanager
def answering(answer):
    """A server for which `await answer(writer, number, request)` writes the answer to the request of that number.

    Yields its URL. It runs in a thread, so an answer may also stall all of it with `time.sleep`. It ends when its
    last client has hung up.
    """
    numbers = itertools.count()
    ready, ended, urls = threading.Event(), [], []

    async def connection(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                request = head + await reader.readexactly(int(length or 0))
                await answer(writer, next(numbers), request)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client hung up
        finally:
            writer.close()

    async def serve():
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        ended.append(lambda: loop.call_soon_threadsafe(stop.set))
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        ready.set()
        await stop.wait()
        server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # the clients have hung up, or will
            await asyncio.wait(others)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield urls[0]
    finally:
        ended[0]()
        thread.join()
