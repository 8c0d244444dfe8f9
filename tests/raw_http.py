"""Requests that no library would send, and what comes back."""

import json
import socket
import time
from typing import NamedTuple
from urllib.parse import urlsplit


class Raw(NamedTuple):
    """An answer; status 0 if the connection was closed without one."""

    status: int
    headers: dict
    body: bytes

    @property
    def error(self):
        return json.loads(self.body)["error"]


def connect(url, timeout_s=10):
    """A connection to a service."""
    parts = urlsplit(str(url))
    return socket.create_connection((parts.hostname, parts.port), timeout=timeout_s)


def answer(connection):
    """What comes over a connection until one answer of known length is whole, or it is closed."""
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
    """All that comes back for some bytes, sent with pauses in between, until the connection is closed."""
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
    """The answer to some bytes over a connection of their own."""
    with connect(url, timeout_s) as connection:
        connection.sendall(data)
        return answer(connection)
