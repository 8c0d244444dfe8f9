"""The program as an operator runs it, in a process of its own, with made-up models."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[1]
_PATIENCE_S = 120
PROGRAM = """
from models.checkpoint import load
load.FAMILIES["fake"] = ("tests.fakes", "SlowFakeModel")
from service.app import serve
from service.settings import read_settings
serve(read_settings())
"""


@contextlib.contextmanager
def running_process(registry, log, *, program=PROGRAM, **settings):
    """The process and its URL, ready; what it logs goes to a file. Settings as in the environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ours = {"GRAMOPHONE_REGISTRY": str(registry.root), "GRAMOPHONE_PORT": str(port)}
    ours |= {"GRAMOPHONE_REGISTRY_CACHE": str(log.parent / "cache"), **settings}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRAMOPHONE_")}  # noqa: TID251
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, env={**environment, **ours}, stderr=file
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_until_ready(child, url)
            yield child, url
        finally:
            child.kill()
            child.wait()


def _wait_until_ready(child, url):
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        assert child.poll() is None
        with contextlib.suppress(httpx.TransportError):  # refused, or busy with starting
            if httpx.get(f"{url}/health/ready").status_code == 200:
                return
        time.sleep(0.02)
    pytest.fail("the service never became ready")
