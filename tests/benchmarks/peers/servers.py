"""Servers that take turns: one is loaded, the others are held, since LitServe's processes poll when they are idle."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from ports import free_port

from service.bench.plan import Target

_PATIENCE_S = 120


class Server:
    """A server in a process group of its own, ready and held.

    Args:
        command: starts it; `--port` and a number are added, and it answers GET /health/ready.
        log: file that takes what it prints.
    """

    def __init__(self, command, log):
        self._port = free_port()
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port)], stdout=file, stderr=file, start_new_session=True
            )
        try:
            self._wait_until_ready(log)
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def turn(self):
        """Let it run while the block does; where it is."""
        self._signal(signal.SIGCONT)
        try:
            yield Target.parse(f"http://127.0.0.1:{self._port}")
        finally:
            self._signal(signal.SIGSTOP)

    def close(self):
        """End all its processes."""
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number):
        os.killpg(self._process.pid, number)

    def _wait_until_ready(self, log):
        until = time.monotonic() + _PATIENCE_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until:
                sys.exit(f"{self._process.args} did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.2)

    def _is_ready(self):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), timeout=5) as s,
        ):
            s.sendall(b"GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            return b" 200 " in s.recv(100)
        return False


@contextlib.contextmanager
def running(commands, folder):
    """Servers by the names of their commands, started one after the other, while the block runs."""
    with contextlib.ExitStack() as stack:
        servers = {}
        for name, command in commands.items():
            servers[name] = Server(command, Path(folder) / f"{name}.log".replace("/", "-"))
            stack.callback(servers[name].close)
        yield servers
