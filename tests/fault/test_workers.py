"""Workers that are killed or hang under load, and conflicting administration of several workers."""

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import httpx
import pytest

from models.checkpoint import load
from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from service.api_keys import create_key
from tests.contract.conftest import publish
from tests.support.fake_models import HANGS, FakeModel, fake_vocabulary
from tests.support.services import (
    SCORE,
    faulty_service,
    made_up_registry,
    poisoned_program,
    running_workers,
    wait_for,
)


@pytest.fixture
def registry(monkeypatch, tmp_path):
    monkeypatch.setitem(load.FAMILIES, "fake", ("tests.support.fake_models", "FakeModel"))
    registry = LocalRegistry(tmp_path / "registry", create=True)
    words = WordTokenizer(fake_vocabulary())
    for name in ("main", "other"):
        publish(registry, name, FakeModel(words.vocabulary), words)
    return registry


class Load:
    """Sends requests over one connection, one after the other, until stopped; records the outcomes."""

    def __init__(self, client):
        self.statuses, self.cut = [], 0
        self._client, self._stop = client, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self):
        while not self._stop.is_set():
            try:
                self.statuses.append(self._client.post("/v1/score", json=SCORE).status_code)
            except httpx.TransportError:  # the next request reconnects
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
        restarted = workers.line(event="worker restarted", of=1)
        wait_for(lambda: workers.metric("gramophone_workers_answering") == {"": 2}, seconds=60)
        wait_for(lambda: len(told(workers, "worker accepts connections")) == 3, seconds=60)
        for load in loads:
            load.stop()
        # only the dead worker's pending reply is lost; no request is answered as not ready
        assert loads[0].cut == 0
        assert loads[1].cut <= 1
        assert {status for load in loads for status in load.statuses} == {200}
        assert workers.pid_of(1) == restarted["pid"]
        assert workers.metric("gramophone_worker_restarts_total") == {"0": 0, "1": 1}
        # its counters restart from zero, as rate() expects, and it serves the model loaded manually
        again = workers.client(1)
        assert again.post("/v1/score", json={**SCORE, "model": "other"}).status_code == 200
        counted = workers.metric("gramophone_scored_tokens_total")
        assert counted["0"] >= 3 * len(loads[0].statuses)  # </s>, too
        assert counted["1"] == 3


def test_states_of_a_killed_worker_are_reported_as_lost(registry, tmp_path):
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
        kill(workers, keeper)  # repeated deaths restart with growing delays
        wait_for(lambda: len(told(workers, "worker restarted")) == 2)
        assert [line["again_in_s"] for line in told(workers, "worker died")] == [0.0, 0.5]


def kill(workers, number):
    """Kill a worker; return once its supervisor has noticed."""
    seen = len(told(workers, "worker died"))
    os.kill(workers.pid_of(number), signal.SIGKILL)
    wait_for(lambda: len(told(workers, "worker died")) > seen)


def told(workers, event):
    return [line for line in workers.lines() if line["event"] == event]


HANG_S = 6


@pytest.fixture(scope="module")
def hanging_registry(tmp_path_factory):
    return made_up_registry(tmp_path_factory.mktemp("hang"), names=("main", "other"), hang_s=100_000.0)


@pytest.fixture
def two(hanging_registry, tmp_path):
    """Run two workers; one that is silent for some seconds is killed."""
    settings = {"GRAMOPHONE_MODELS": "main", "GRAMOPHONE_HANG_TIMEOUT_S": str(HANG_S)}
    with running_workers(hanging_registry, tmp_path, program=poisoned_program(), **settings) as workers:
        yield workers


def is_replaced(workers, number, *, whose_pid_was):
    """True if a new process serves in place of a worker."""
    try:
        both = workers.metric("gramophone_ready") == {"0": 1, "1": 1}
    except OSError:  # the worker was killed during the request
        return False
    return both and workers.pid_of(number) != whose_pid_was


def test_a_stopped_worker_is_replaced_and_the_other_serves(two):
    client, pid = two.client(0), two.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    while not any(line["event"] == "hung worker killed" for line in two.lines()):
        assert client.post("/v1/score", json=SCORE).status_code == 200
        assert time.monotonic() - began_s < 60
    wait_for(lambda: is_replaced(two, 1, whose_pid_was=pid), seconds=90)
    assert two.line(event="worker died", of=1)["how"] == "SIGKILL"
    assert two.client(1).post("/v1/score", json=SCORE).status_code == 200


def test_a_worker_whose_model_computes_without_end_is_replaced(two):
    clients, pid = [two.client(number) for number in (0, 1)], two.pid_of(1)
    lost = []

    def poison():
        try:
            clients[1].post("/v1/score", json={"texts": [HANGS]})
        except Exception as error:  # noqa: BLE001 - whatever the client makes of it
            lost.append(error)

    thread = threading.Thread(target=poison)
    thread.start()
    wait_for(lambda: is_replaced(two, 1, whose_pid_was=pid), seconds=90)
    thread.join()
    assert lost
    assert clients[0].post("/v1/score", json=SCORE).status_code == 200


def test_nobody_is_killed_where_all_were_held_up(two):
    everybody = [two.supervisor.pid, *two.pids()]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5 * HANG_S)
    for pid in everybody:
        os.kill(pid, signal.SIGCONT)
    time.sleep(HANG_S)
    assert two.client(0).post("/v1/score", json=SCORE).status_code == 200
    assert not [line for line in two.lines() if line["event"] in {"worker died", "hung worker killed"}]


def test_a_lone_process_whose_model_hangs_is_not_alive(hanging_registry, tmp_path):
    settings = {"GRAMOPHONE_MODELS": "main", "GRAMOPHONE_HANG_TIMEOUT_S": "1"}
    with faulty_service(hanging_registry, tmp_path, drains=False, **settings) as service:
        assert service.get("/health/live").status_code == 200
        service.post_and_go("/v1/score", {"texts": [HANGS]})
        answer = wait_for(
            lambda: (told := service.get("/health/live")).status_code == 503 and told, seconds=60
        )
        assert answer.json()["status"] == "hung"


def test_opposite_changes_at_the_same_moment_end_alike_in_both(hanging_registry, tmp_path):
    key = create_key("operator", ["admin", "infer", "metrics"])
    settings = {"GRAMOPHONE_MODELS": "main", "GRAMOPHONE_API_KEYS": key.key.line}
    headers = {"authorization": f"Bearer {key.secret}"}
    with running_workers(hanging_registry, tmp_path, headers, program=poisoned_program(), **settings) as two:
        end_alike(two)


def end_alike(two):
    """Send opposite changes to the two workers, repeatedly."""
    clients = [two.client(number) for number in (0, 1)]
    for _ in range(10):
        at_once, done = threading.Barrier(2), []

        def change(client, action, at_once=at_once, done=done):
            at_once.wait()
            done.append(client.post(f"/admin/models/{action}", json={"model": "other"}).status_code)

        threads = [
            threading.Thread(target=change, args=pair)
            for pair in zip(clients, ("load", "unload"), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(done) <= {200, 202, 404}  # a model that is not loaded cannot be unloaded
        assert settled(clients) in ([200, 200], [404, 404])


def settled(clients):
    """Return both workers' statuses for a model once no load is in progress."""

    def statuses():
        body = {**SCORE, "model": "other"}
        told = [client.post("/v1/score", json=body).status_code for client in clients]
        return None if 503 in told else told

    wait_for(statuses)
    time.sleep(0.2)
    return wait_for(statuses)


@pytest.fixture
def temporary():
    """A temporary folder with a path short enough for socket names."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def test_folders_of_a_killed_service_are_removed_by_the_next(hanging_registry, tmp_path, temporary):
    settings = {"GRAMOPHONE_MODELS": "main", "TMPDIR": temporary}
    with running_workers(hanging_registry, tmp_path, program=poisoned_program(), **settings) as alive:
        with running_workers(
            hanging_registry, made(tmp_path / "a"), program=poisoned_program(), **settings
        ) as killed:
            left = folders_of(killed)
            for pid in (killed.supervisor.pid, *killed.pids()):
                os.kill(pid, signal.SIGKILL)
            killed.supervisor.wait()
        # Any service that starts meanwhile, as those of other tests do, may remove the folder in memory;
        # only services of this test see the temporary folder.
        on_disk = [folder for folder in left if folder.is_relative_to(temporary)]
        assert on_disk
        assert all(folder.exists() for folder in on_disk)
        with running_workers(
            hanging_registry, made(tmp_path / "b"), program=poisoned_program(), **settings
        ) as next_one:
            assert not any(folder.exists() for folder in left)
            assert next_one.line(event="removed the folder of a killed service")
        assert alive.client(0).post("/v1/score", json=SCORE).status_code == 200
        assert all(folder.exists() for folder in folders_of(alive))


def made(folder):
    folder.mkdir()
    return folder


def folders_of(service):
    """Return the folders that a service's workers share, in memory and on disk: those its supervisor holds open."""
    held = {link.readlink() for link in Path(f"/proc/{service.supervisor.pid}/fd").iterdir()}
    return {path for path in held if path.name.startswith("gramophone-")}
