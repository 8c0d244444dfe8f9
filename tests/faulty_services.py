"""Served processes to be ill-treated, and what the system tells of them."""

import contextlib
import os
import socket
import time
from pathlib import Path

import httpx

from models.checkpoint.registry import LocalRegistry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.tokenizers import WordTokenizer
from tests.fakes import fake_vocabulary
from tests.poisoned import PoisonedModel
from tests.processes import ROOT, running_process
from tests.raw_http import connect

PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from models.checkpoint import load
load.FAMILIES["fake"] = ("tests.poisoned", "PoisonedModel")
from service.app import serve
from service.settings import read_settings
serve(read_settings())
"""
SCORE = {"texts": ["the cat"]}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DESCRIPTION = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})


def program(files=None):
    """A service's program, with so many descriptors at most."""
    limit = "" if files is None else f"import resource\nresource.setrlimit(7, ({files}, {files}))\n"
    return limit + PROGRAM


def made_up_registry(folder, names=("main",), **options):
    """A registry of models that do as they are told."""
    registry = LocalRegistry(folder / "registry", create=True)
    words = WordTokenizer(fake_vocabulary())
    for name in names:
        model = PoisonedModel(words.vocabulary, **options)
        registry.publish(name, lambda place, model=model: write_checkpoint(place, model, words, _DESCRIPTION))
    return registry


class Service:
    """A running service and its processes.

    Attributes:
        child: the process that was started.
        url: where it serves.
        pids: of the processes that serve.
    """

    def __init__(self, child, url, workers):
        self.child, self.url = child, url
        own = child.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        self.pids = [int(pid) for pid in children] if workers > 1 else [own]

    def files(self):
        """Open descriptors of all that serve."""
        return sum(1 for pid in self.pids for _ in Path(f"/proc/{pid}/fd").iterdir())

    def cpu_s(self):
        """Processor time that they have taken."""
        return sum(_cpu_ticks(pid) for pid in self.pids) / _TICKS_PER_S

    def resident_bytes(self):
        """Memory of the largest."""
        return max(
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for pid in self.pids
        )

    def threads(self):
        """Threads of all that serve."""
        return sum(1 for pid in self.pids for _ in Path(f"/proc/{pid}/task").iterdir())

    def metric(self, name):
        """The sum of a metric's samples."""
        with httpx.Client() as client:
            lines = client.get(f"{self.url}/metrics").text.splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))
        )

    def get(self, path):
        """The answer to a request over a connection of its own."""
        return httpx.get(f"{self.url}{path}", timeout=20)

    def post_and_go(self, path, body):
        """Ask for something, and hang up before it is answered."""
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(f"{self.url}{path}", json=body, timeout=0.5)

    def serves_newcomers(self):
        """Whether somebody who comes now is answered."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.post(f"{self.url}/v1/score", json=SCORE, timeout=20).status_code == 200
        return False


@contextlib.contextmanager
def faulty_service(registry, folder, *, workers=1, files=None, drains=True, **settings):
    """A service, ready, while the block runs; one that cannot end well is not asked to."""
    ours = {"GRAMOPHONE_WORKERS": str(workers), "GRAMOPHONE_LOG_FORMAT": "json"}
    with running_process(registry, folder / "log", program=program(files), **(ours | settings)) as (
        child,
        url,
    ):
        yield Service(child, url, workers)
        assert child.poll() is None, "the service died"
        if drains:
            child.terminate()
            child.wait(timeout=60)


@contextlib.contextmanager
def crowd(url, size):
    """So many connections that ask nothing; those that could not be made are left out."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(size):
            with contextlib.suppress(OSError):
                made.append(stack.enter_context(connect(url)))
        yield made


def is_open(connection):
    """Whether the other end has not closed it."""
    connection.settimeout(0)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def wait_until(condition, seconds=60):
    """Return once it holds."""
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s, "it did not come about"
        time.sleep(0.02)


def _cpu_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return int(fields[11]) + int(fields[12])
