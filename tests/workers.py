"""A service of two workers in processes of their own, and clients of which it is known who has accepted them."""

import contextlib
import itertools
import json
import time
import urllib.request
from pathlib import Path

import httpx

from tests.processes import running_process

_LONG = httpx.Limits(keepalive_expiry=None)
_ids = itertools.count()


class Workers:
    """A running service.

    Attributes:
        supervisor: its process.
        url: where it serves.
        log: the file of its log lines.
    """

    def __init__(self, supervisor, url, log, headers):
        self.supervisor, self.url, self.log, self._headers = supervisor, url, log, headers
        self._open = []

    def client(self, number):
        """A client with one connection, accepted by the worker of that number."""
        for _ in range(100):
            client = httpx.Client(base_url=self.url, timeout=30, limits=_LONG, headers=self._headers)
            self._open.append(client)  # those of others stay open, so that it is this one's turn
            if self.acceptor(client) == number:
                return client
        raise AssertionError

    def acceptor(self, client):
        """The number of the worker that has accepted a client's connection."""
        own = f"who-{next(_ids)}"
        client.get("/health/live", headers={"x-request-id": own})
        return self.line(request_id=own)["worker"]

    def line(self, **facts):
        """The log line with these facts, once it is there."""
        return wait_for(lambda: next((line for line in self.lines() if facts.items() <= line.items()), None))

    def lines(self):
        """All whole log lines of the service."""
        told = self.log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in told if line.startswith("{")]

    def metric(self, name):
        """The samples of a metric, by the worker that they are of."""
        found = {}
        request = urllib.request.Request(f"{self.url}/metrics", headers=self._headers)  # noqa: S310 - our own
        with urllib.request.urlopen(request) as reply:  # noqa: S310
            text = reply.read().decode()
        for line in text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")):
                labels, value = line.rsplit(" ", 1)
                worker = labels.partition('worker="')[2].partition('"')[0]
                found[worker] = found.get(worker, 0) + float(value)
        return found

    def pids(self):
        """The processes of the workers that are alive."""
        own = self.supervisor.pid
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]

    def pid_of(self, number):
        """The process of a worker, as the log last told."""
        started = self.line(event="workers started")["pids"]
        again = [
            line["pid"]
            for line in self.lines()
            if line["event"] == "worker started again" and line["of"] == number
        ]
        return again[-1] if again else started[number]

    def close(self):
        for client in self._open:
            client.close()


@contextlib.contextmanager
def running_workers(registry, folder, headers=None, **settings):
    """Two workers, ready, while the block runs; the headers are of all requests."""
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
    """What a condition gives, once that is something."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come about")
