"""Services under test: in a thread, in a process, with two workers, with injected faults.

Also runs the command line in the test process.
"""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from fastapi import FastAPI

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from service.app import create_app
from service.cli.main import main
from service.hosting.loaded_model import LoadState
from service.http_server import DrainingServer, listen, url_of
from service.settings import Settings
from tests.support.certificates import trusting
from tests.support.fake_models import PoisonedModel, fake_vocabulary
from tests.support.http import connect, free_port


class Server(NamedTuple):
    """A running service."""

    url: str
    app: FastAPI


@contextlib.contextmanager
def serving(app, settings=None):
    """Serve an application on a free port within the block."""
    settings = (settings or Settings()).model_copy(update={"port": 0})
    server, listening = DrainingServer(app, settings), listen(settings)
    url = url_of(listening, settings).replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - as in a container
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield url
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def running(settings):
    """Run the configured service on a free port within the block, which starts after all models are loaded."""
    app = create_app(settings)
    with serving(app, settings) as url:
        while any(model.state == LoadState.LOADING for model in app.state.services.host.models.values()):
            time.sleep(0.005)
        app.state.services.reloader._thread.submit(int).result()  # later than the log line about readiness
        yield Server(url, app)


ROOT = Path(__file__).parents[2]
_PATIENCE_S = 120
PROGRAM = """
from models.checkpoint import load
load.FAMILIES["fake"] = ("tests.support.fake_models", "SlowFakeModel")
from service.app import serve
from service.settings import read_settings
serve(read_settings())
"""


@contextlib.contextmanager
def running_process(registry, log, *, program=PROGRAM, **settings):
    """Run a ready service process with environment settings; yield process and URL. It logs to a file."""
    port = free_port()
    ours = {"GRAMOPHONE_REGISTRY": str(registry.root), "GRAMOPHONE_PORT": str(port)}
    ours |= {"GRAMOPHONE_REGISTRY_CACHE": str(log.parent / "cache"), **settings}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRAMOPHONE_")}  # noqa: TID251
    environment["GRAMOPHONE_USERS"] = ":memory:"
    environment["GRAMOPHONE_WORDLISTS"] = str(log.parent / "wordlists")
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, env={**environment, **ours}, stderr=file
        )
        certificate = settings.get("GRAMOPHONE_TLS_CERTIFICATE")
        url = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
        try:
            _wait_until_ready(child, url, trusting(certificate))
            yield child, url
        finally:
            child.kill()
            child.wait()


def _wait_until_ready(child, url, verify):
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        assert child.poll() is None
        with contextlib.suppress(httpx.TransportError):  # refused, or still starting
            if httpx.get(f"{url}/health/ready", verify=verify).status_code == 200:
                return
        time.sleep(0.02)
    pytest.fail("the service never became ready")


_LONG = httpx.Limits(keepalive_expiry=None)
_ids = itertools.count()


class Workers:
    """Running service with several workers.

    Attributes:
        supervisor: supervisor process.
        url: base URL.
        log: log file.
    """

    def __init__(self, supervisor, url, log, headers):
        self.supervisor, self.url, self.log, self._headers = supervisor, url, log, headers
        self._open = []

    def client(self, number):
        """Return a client with one connection, accepted by the worker of that number."""
        for _ in range(100):
            client = httpx.Client(base_url=self.url, timeout=30, limits=_LONG, headers=self._headers)
            self._open.append(client)  # held open, so the next connection goes to another worker
            if self.acceptor(client) == number:
                return client
        raise AssertionError

    def acceptor(self, client):
        """Number of the worker that accepted a client's connection."""
        own = f"who-{next(_ids)}"
        client.get("/health/live", headers={"x-request-id": own})
        return self.line(request_id=own)["worker"]

    def line(self, **facts):
        """Wait for the log line with these fields."""
        return wait_for(lambda: next((line for line in self.lines() if facts.items() <= line.items()), None))

    def lines(self):
        """All complete log lines of the service."""
        told = self.log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in told if line.startswith("{")]

    def metric(self, name):
        """Samples of a metric by worker."""
        found = {}
        request = urllib.request.Request(f"{self.url}/metrics", headers=self._headers)  # noqa: S310 - local service
        with urllib.request.urlopen(request) as reply:  # noqa: S310
            text = reply.read().decode()
        for line in text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")):
                labels, value = line.rsplit(" ", 1)
                worker = labels.partition('worker="')[2].partition('"')[0]
                found[worker] = found.get(worker, 0) + float(value)
        return found

    def pids(self):
        """Process ids of the live workers."""
        own = self.supervisor.pid
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]

    def pid_of(self, number):
        """Process id of a worker from its last log line."""
        started = self.line(event="workers started")["pids"]
        again = [
            line["pid"]
            for line in self.lines()
            if line["event"] == "worker restarted" and line["of"] == number
        ]
        return again[-1] if again else started[number]

    def close(self):
        for client in self._open:
            client.close()


@contextlib.contextmanager
def running_workers(registry, folder, headers=None, **settings):
    """Run two ready workers within the block; the headers go with every request."""
    log = folder / "log"
    ours = {"GRAMOPHONE_WORKERS": "2", "GRAMOPHONE_LOG_FORMAT": "json", **settings}
    with running_process(registry, log, **ours) as (child, url):
        workers = Workers(child, url, log, headers or {})
        try:
            yield workers
        finally:
            workers.close()
            child.terminate()
            child.wait(timeout=20)


def wait_for(condition, seconds=20):
    """Wait until the condition returns a true value, and return it."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come about")


POISONED_PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from models.checkpoint import load
load.FAMILIES["fake"] = ("tests.support.fake_models", "PoisonedModel")
from service.app import serve
from service.settings import read_settings
serve(read_settings())
"""
SCORE = {"texts": ["the cat"]}
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DESCRIPTION = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})


def poisoned_program(files=None):
    """Program of a service with a limit of file descriptors."""
    limit = "" if files is None else f"import resource\nresource.setrlimit(7, ({files}, {files}))\n"
    return limit + POISONED_PROGRAM


def made_up_registry(folder, names=("main",), *, extra_words=0, **options):
    """Registry of `PoisonedModel` versions."""
    registry = LocalRegistry(folder / "registry", create=True)
    words = WordTokenizer(fake_vocabulary(f"word{i}" for i in range(extra_words)))
    for name in names:
        model = PoisonedModel(words.vocabulary, **options)
        registry.publish(name, lambda place, model=model: write_checkpoint(place, model, words, _DESCRIPTION))
    return registry


class Service:
    """Running service and its processes.

    Attributes:
        child: started process.
        url: base URL.
        pids: ids of the serving processes.
    """

    def __init__(self, child, url, workers):
        self.child, self.url = child, url
        own = child.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        self.pids = [int(pid) for pid in children] if workers > 1 else [own]

    def files(self):
        """Open descriptors of all serving processes."""
        return sum(1 for pid in self.pids for _ in Path(f"/proc/{pid}/fd").iterdir())

    def cpu_s(self):
        """CPU time of all serving processes."""
        return sum(_cpu_ticks(pid) for pid in self.pids) / _TICKS_PER_S

    def resident_bytes(self):
        """Memory of the largest serving process."""
        return max(
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for pid in self.pids
        )

    def threads(self):
        """Threads of all serving processes."""
        return sum(1 for pid in self.pids for _ in Path(f"/proc/{pid}/task").iterdir())

    def metric(self, name):
        """Sum of a metric's samples."""
        with httpx.Client() as client:
            lines = client.get(f"{self.url}/metrics").text.splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))
        )

    def get(self, path):
        """Send a GET request over a new connection."""
        return httpx.get(f"{self.url}{path}", timeout=20)

    def post_and_go(self, path, body):
        """Send a request and close the connection before the reply."""
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(f"{self.url}{path}", json=body, timeout=0.5)

    def serves_newcomers(self):
        """True if a new client gets a reply."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.post(f"{self.url}/v1/score", json=SCORE, timeout=20).status_code == 200
        return False


@contextlib.contextmanager
def faulty_service(registry, folder, *, workers=1, files=None, drains=True, **settings):
    """Run a ready service with faults within the block; `drains=False` skips the graceful shutdown."""
    ours = {"GRAMOPHONE_WORKERS": str(workers), "GRAMOPHONE_LOG_FORMAT": "json"}
    with running_process(registry, folder / "log", program=poisoned_program(files), **(ours | settings)) as (
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
    """Open up to `size` idle connections; failed attempts are skipped."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(size):
            with contextlib.suppress(OSError):
                made.append(stack.enter_context(connect(url)))
        yield made


def is_open(connection):
    """True if the peer has not closed the connection."""
    connection.settimeout(0)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def wait_until(condition, seconds=60):
    """Wait until the condition holds; fail after a timeout."""
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s, "it did not come about"
        time.sleep(0.02)


def _cpu_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return int(fields[11]) + int(fields[12])


def typed_line(capsys, monkeypatch, *argv, stdin=None):
    """Run `gramophone …` as from a shell: exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["gramophone", *map(str, argv)])
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", stdin)
    code = 0
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err
