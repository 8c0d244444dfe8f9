"""Workers that are there and do nothing, changes that contradict one another, and what a killed service leaves."""

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

from service.api_keys import create_key
from tests.faulty_services import SCORE, faulty_service, made_up_registry, program
from tests.poisoned import HANGS
from tests.workers import running_workers, wait_for

HANG_S = 6


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    return made_up_registry(tmp_path_factory.mktemp("hang"), names=("main", "other"), hang_s=100_000.0)


@pytest.fixture
def two(registry, tmp_path):
    """Two workers, of which one that is silent for some seconds is killed."""
    settings = {"GRAMOPHONE_MODELS": "main", "GRAMOPHONE_HANG_TIMEOUT_S": str(HANG_S)}
    with running_workers(registry, tmp_path, program=program(), **settings) as workers:
        yield workers


def is_replaced(workers, number, *, whose_pid_was):
    """Whether another worker serves in the place of one."""
    try:
        both = workers.metric("gramophone_ready") == {"0": 1, "1": 1}
    except OSError:  # it was asked of the one that was killed at that moment
        return False
    return both and workers.pid_of(number) != whose_pid_was


def test_a_stopped_worker_is_replaced_and_the_other_serves(two):
    client, pid = two.client(0), two.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    while not any(line["event"] == "worker hangs, and is killed" for line in two.lines()):
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
    assert not [
        line for line in two.lines() if line["event"] in {"worker died", "worker hangs, and is killed"}
    ]


def test_a_lone_process_whose_model_hangs_is_not_alive(registry, tmp_path):
    settings = {"GRAMOPHONE_MODELS": "main", "GRAMOPHONE_HANG_TIMEOUT_S": "1"}
    with faulty_service(registry, tmp_path, drains=False, **settings) as service:
        assert service.get("/health/live").status_code == 200
        service.post_and_go("/v1/score", {"texts": [HANGS]})
        answer = wait_for(
            lambda: (told := service.get("/health/live")).status_code == 503 and told, seconds=60
        )
        assert answer.json()["status"] == "hung"


def test_opposite_changes_at_the_same_moment_end_alike_in_both(registry, tmp_path):
    key = create_key("operator", ["admin", "infer", "metrics"])
    settings = {"GRAMOPHONE_MODELS": "main", "GRAMOPHONE_API_KEYS": key.key.line}
    headers = {"authorization": f"Bearer {key.secret}"}
    with running_workers(registry, tmp_path, headers, program=program(), **settings) as two:
        end_alike(two)


def end_alike(two):
    """Ask one for a change and the other for its opposite, over and over."""
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
        assert set(done) <= {200, 202, 404}  # what is not loaded cannot be unloaded
        assert settled(clients) in ([200, 200], [404, 404])


def settled(clients):
    """What both say of a model once no load of it is under way."""

    def statuses():
        body = {**SCORE, "model": "other"}
        told = [client.post("/v1/score", json=body).status_code for client in clients]
        return None if 503 in told else told

    wait_for(statuses)
    time.sleep(0.2)
    return wait_for(statuses)


@pytest.fixture
def temporary():
    """A folder of temporary files with a path that leaves room for sockets' names."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def test_what_a_service_that_was_killed_whole_has_left_is_swept_by_the_next(registry, tmp_path, temporary):
    settings = {"GRAMOPHONE_MODELS": "main", "TMPDIR": temporary}
    with running_workers(registry, tmp_path, program=program(), **settings) as alive:
        with running_workers(registry, made(tmp_path / "a"), program=program(), **settings) as killed:
            left = folders_of(killed)
            for pid in (killed.supervisor.pid, *killed.pids()):
                os.kill(pid, signal.SIGKILL)
            killed.supervisor.wait()
        assert left
        assert all(folder.exists() for folder in left)
        with running_workers(registry, made(tmp_path / "b"), program=program(), **settings) as next_one:
            assert not any(folder.exists() for folder in left)
            assert next_one.line(event="removed what a service that was killed had left")
        assert alive.client(0).post("/v1/score", json=SCORE).status_code == 200
        assert all(folder.exists() for folder in folders_of(alive))


def made(folder):
    folder.mkdir()
    return folder


def folders_of(service):
    """Folders that a service's workers share, in memory and among temporary files: those that its supervisor holds."""
    held = {link.readlink() for link in Path(f"/proc/{service.supervisor.pid}/fd").iterdir()}
    return {path for path in held if path.name.startswith("gramophone-")}
