"""Raw HTTP requests, servers that send given bytes, and ports for servers."""

import asyncio
import contextlib
import itertools
import json
import random
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit


class Raw(NamedTuple):
    """Raw response; status 0 if the connection was closed without one."""

    status: int
    headers: dict
    body: bytes

    @property
    def error(self):
        return json.loads(self.body)["error"]


_LAST_BLOCKED_PORT = 10_080  # the highest "bad port" of the Fetch standard, section 2.9


def free_port():
    """Return a free port that browsers and Node's fetch accept, outside the range of outgoing connections.

    A port chosen by the kernel may go to a connection of another test before the server binds it; a client
    that retries it may even connect to itself.
    """
    with socket.socket() as free:
        while True:
            port = random.randrange(_LAST_BLOCKED_PORT + 1, _first_outgoing_port())
            with contextlib.suppress(OSError):
                free.bind(("127.0.0.1", port))
                return port


def _first_outgoing_port():
    with contextlib.suppress(OSError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 32_768


def connect(url, timeout_s=10):
    """Open a connection to a service."""
    parts = urlsplit(str(url))
    return socket.create_connection((parts.hostname, parts.port), timeout=timeout_s)


def answer(connection):
    """Read one response of known length, or until the connection is closed."""
    received = b""
    while not _whole(received):
        try:
            some = connection.recv(65536)
        except ConnectionResetError:
            some = b""
        if not some:
            break
        received += some
    return _read(received)


def answers(connection, *segments, pause_s=0.0):
    """Send segments with pauses and return all responses until the connection is closed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for segment in segments:
        connection.sendall(segment)
        time.sleep(pause_s)
    received = b"".join(iter(lambda: connection.recv(65536), b""))
    found = []
    while received:
        got = _read(received)
        body = got.body[: int(got.headers.get("content-length", len(got.body)))]
        found.append(got._replace(body=body))
        received = got.body[len(body) :]
    return found


def _read(received):
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return Raw(int(first.split()[1]) if first else 0, headers, body)


def _whole(received):
    head, end, body = received.partition(b"\r\n\r\n")
    length = [
        line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    ]
    return bool(end) and bool(length) and len(body) >= int(length[0])


def asked(url, data, *, timeout_s=10):
    """Send bytes over a new connection and return the response."""
    with connect(url, timeout_s) as connection:
        connection.sendall(data)
        return answer(connection)


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def whole(body=b"{}", status="200 OK", headers=""):
    """Response of known length."""
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def chunk(content):
    """Chunk of a chunked body, without the terminating chunk."""
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def token_event(text="a"):
    """Token event in the format of OpenAI's streamed completions."""
    return chunk(f'data: {{"choices": [{{"index": 0, "text": "{text}"}}]}}\n\n'.encode())


@contextlib.contextmanager
def answering(answer):
    """Run a server in which `await answer(writer, number, request)` writes the response to each numbered request.

    Yields its URL. It runs in a thread, so `time.sleep` in `answer` stalls the complete server. It ends when the
    last client has closed its connection.
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
            pass  # the client closed the connection
        finally:
            writer.close()

    async def serve():
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        ended.append(lambda: loop.call_soon_threadsafe(stop.set))
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        ready.set()
        await stop.wait()
        loop.remove_reader(server.sockets[0])  # a connection accepted while the server closes would leak
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # until all clients disconnect
            await asyncio.wait(others)
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield urls[0]
    finally:
        ended[0]()
        thread.join()
