"""A worker is killed while the service is under load: others go on unhurt, and it is started again."""

import os
import signal
import threading

import httpx
import pytest

from models.checkpoint import load
from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from service.api_keys import create_key
from tests.contract.conftest import publish
from tests.fakes import FakeModel, fake_vocabulary
from tests.workers import running_workers, wait_for

SCORE = {"texts": ["the cat"]}


@pytest.fixture
def registry(monkeypatch, tmp_path):
    monkeypatch.setitem(load.FAMILIES, "fake", ("tests.fakes", "FakeModel"))
    registry = LocalRegistry(tmp_path / "registry", create=True)
    words = WordTokenizer(fake_vocabulary())
    for name in ("main", "other"):
        publish(registry, name, FakeModel(words.vocabulary), words)
    return registry


class Load:
    """Requests over one connection, one after the other, until it is stopped; what became of them."""

    def __init__(self, client):
        self.statuses, self.cut = [], 0
        self._client, self._stop = client, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self):
        while not self._stop.is_set():
            try:
                self.statuses.append(self._client.post("/v1/score", json=SCORE).status_code)
            except httpx.TransportError:  # the next request connects anew
                self.cut += 1

    def stop(self):
        self._stop.set()
        self._thread.join()


def test_a_killed_worker_is_missed_by_its_own_requests_only(registry, tmp_path):
    key = create_key("operator", ["admin", "infer", "metrics"])
    settings = {"GRAMOPHONE_MODELS": "main", "GRAMOPHONE_API_KEYS": key.key.line}
    headers = {"authorization": f"Bearer {key.secret}"}
    with running_workers(registry, tmp_path, headers=headers, **settings) as workers:
        clients = [workers.client(number) for number in (0, 1)]
        clients[0].post("/admin/models/load", json={"model": "other", "wait": True})
        loads = [Load(client) for client in clients]
        wait_for(lambda: all(len(load.statuses) > 5 for load in loads))
        os.kill(workers.pid_of(1), signal.SIGKILL)
        restarted = workers.line(event="worker started again", of=1)
        wait_for(lambda: workers.metric("gramophone_workers_answering") == {"": 2}, seconds=60)
        wait_for(lambda: len(told(workers, "worker takes connections")) == 3, seconds=60)
        for load in loads:
            load.stop()
        # all that was cut off is what the dead worker was about to answer; nothing was told that it is not ready
        assert loads[0].cut == 0
        assert loads[1].cut <= 1
        assert {status for load in loads for status in load.statuses} == {200}
        assert workers.pid_of(1) == restarted["pid"]
        assert workers.metric("gramophone_worker_restarts_total") == {"0": 0, "1": 1}
        # it counts from nought, which is how a rate knows of a restart, and serves what was loaded by hand
        again = workers.client(1)
        assert again.post("/v1/score", json={**SCORE, "model": "other"}).status_code == 200
        counted = workers.metric("gramophone_scored_tokens_total")
        assert counted["0"] >= 3 * len(loads[0].statuses)  # </s>, too
        assert counted["1"] == 3


def test_what_a_killed_worker_knew_is_told_to_be_gone(registry, tmp_path):
    with running_workers(registry, tmp_path, GRAMOPHONE_MODELS="main") as workers:
        clients = [workers.client(number) for number in (0, 1)]
        opened = clients[0].post("/v1/states", json={"context": ["the"]}).json()["states"][0]["state"]
        keeper = int(opened.split(".")[0][-1])
        kill(workers, keeper)
        answer = clients[1 - keeper].post("/v1/states/next", json={"states": [opened]})
        assert answer.status_code == 503
        assert f"worker {keeper}" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"] == "1"
        assert workers.line(request_id=answer.headers["x-request-id"])["status"] == 503
        wait_for(lambda: workers.metric("gramophone_ready") == {"0": 1, "1": 1}, seconds=60)
        answer = clients[1 - keeper].post("/v1/states/next", json={"states": [opened]})
        assert answer.json()["error"]["code"] == "unknown_state"
        kill(workers, keeper)  # one that dies again and again is started less and less often
        wait_for(lambda: len(told(workers, "worker started again")) == 2)
        assert [line["again_in_s"] for line in told(workers, "worker died")] == [0.0, 0.5]


def kill(workers, number):
    """Kill a worker; return once its supervisor has seen it."""
    seen = len(told(workers, "worker died"))
    os.kill(workers.pid_of(number), signal.SIGKILL)
    wait_for(lambda: len(told(workers, "worker died")) > seen)


def told(workers, event):
    return [line for line in workers.lines() if line["event"] == event]
