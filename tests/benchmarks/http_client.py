"""The least that speaks HTTP/1.1: a client library would take more of the machine than the service does."""

import asyncio
import socket
import time


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until_ready(port):
    """Return once a service on the port says that it is ready."""
    while True:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                s.sendall(b"GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                if b" 200 " in s.recv(100):
                    return
        time.sleep(0.2)


class Connection:
    """One connection, one request at a time."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port):
        """To a port of this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, path, body):
        """POST JSON; the body of a reply of known length."""
        length = (await self._head(path, body))[b"content-length"]
        return await self._reader.readexactly(int(length))

    async def events(self, path, body):
        """POST JSON; the server-sent events of the reply."""
        await self._head(path, body)
        rest = b""
        while size := int(await self._reader.readline(), 16):
            rest += (await self._reader.readexactly(size + 2))[:-2]
            *whole, rest = rest.split(b"\n\n")
            for event in whole:
                yield event
        await self._reader.readline()

    def close(self):
        """Hang up."""
        self._writer.close()

    async def _head(self, path, body):
        headers = f"host: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        head = f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n"
        self._writer.write(head.encode() + body)
        reply = await self._reader.readuntil(b"\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 200"), reply
        lines = reply.lower().split(b"\r\n")[1:-2]
        return {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
