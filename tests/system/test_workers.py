"""Two workers behind one port: accepted connections, common metrics, start and stop."""

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.certificates import write_certificate
from tests.support.services import ROOT, running_process, running_workers, wait_for

pytestmark = pytest.mark.long
_OF_THE_WHOLE = {"gramophone_workers", "gramophone_workers_answering"}


@pytest.fixture(scope="module")
def workers(registry, tmp_path_factory):
    with running_workers(
        registry, tmp_path_factory.mktemp("workers"), GRAMOPHONE_MODELS="mixture,slow"
    ) as two:
        yield two


@pytest.fixture
def short_folder():
    """Yield a temporary folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def families(workers):
    return list(text_string_to_metric_families(httpx.get(f"{workers.url}/metrics").text))


def test_every_sample_names_its_worker_and_every_family_stands_once(workers):
    told = families(workers)
    names = [family.name for family in told]
    assert len(set(names)) == len(names)
    assert all(family.documentation and family.type != "unknown" for family in told)
    labels = {
        sample.labels.get("worker")
        for family in told
        if family.name not in _OF_THE_WHOLE
        for sample in family.samples
    }
    assert labels == {"0", "1"}


def test_metrics_are_those_of_all_whoever_is_asked(workers):
    before = workers.metric("gramophone_scored_tokens_total")
    for number in (0, 1):
        assert workers.client(number).post("/v1/score", json={"texts": ["the cat"]}).status_code == 200
    for number in (0, 1):
        text = workers.client(number).get("/metrics").text
        assert f'scored_tokens_total{{model_name="mixture@1",worker="{1 - number}"}}' in text
    after = workers.metric("gramophone_scored_tokens_total")
    assert {worker: after[worker] - before.get(worker, 0) for worker in after} == {
        "0": 3,
        "1": 3,
    }  # </s>, too


def test_the_workers_are_counted(workers):
    assert workers.metric("gramophone_workers") == {"": 2}
    assert workers.metric("gramophone_workers_answering") == {"": 2}
    assert workers.metric("gramophone_worker_restarts_total") == {"0": 0, "1": 0}


def test_bursts_of_connections_are_shared_evenly(workers):
    """Most bursts are: an accepting worker does not wait for one that the system delays."""
    assert any(largest_share_of_eight(workers) <= 5 for _ in range(4))


def largest_share_of_eight(workers):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=workers.url)) for _ in range(8)]
        threads = [threading.Thread(target=client.get, args=("/health/live",)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shares = Counter(workers.acceptor(client) for client in clients)
    return max(shares.values())


def test_both_workers_give_the_same_scores(workers):
    body = {"texts": ["the cat sat on the mat", "a dog ran"], "detail": "token"}
    answers = [workers.client(number).post("/v1/score", json=body).json() for number in (0, 1)]
    assert answers[0] == answers[1]


def test_log_lines_name_the_worker(workers):
    for number in (0, 1):
        workers.client(number).post(
            "/v1/score", json={"texts": ["a dog"]}, headers={"x-request-id": f"by-{number}"}
        )
        line = workers.line(request_id=f"by-{number}")
        assert (line["worker"], line["model"]) == (number, "mixture@1")


def test_it_is_ready_once_all_workers_are(workers):
    assert workers.metric("gramophone_ready") == {"0": 1, "1": 1}


def test_all_workers_finish_what_is_under_way_when_told_to_stop(registry, tmp_path, short_folder):
    settings = {"GRAMOPHONE_MODELS": "slow", "TMPDIR": str(short_folder)}
    with running_workers(registry, tmp_path, **settings) as workers:
        clients, answers = [workers.client(number) for number in (0, 1)], []
        body = {"prompt": "the", "max_tokens": 40, "seed": 1}
        threads = [
            threading.Thread(
                target=lambda client=client: answers.append(client.post("/v1/generate", json=body))
            )
            for client in clients
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: workers.metric("gramophone_num_requests_running") == {"0": 1, "1": 1})
        workers.supervisor.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [40, 40]
        assert workers.supervisor.wait(timeout=20) == -signal.SIGTERM
    assert not list(short_folder.glob("gramophone-*"))


def test_a_signal_to_all_processes_at_once_is_one_signal(registry, tmp_path):
    """Service managers signal the whole group: a worker gets the signal twice, and must finish running requests."""
    with running_workers(registry, tmp_path, GRAMOPHONE_MODELS="slow") as workers:
        client, answers = workers.client(1), []
        body = {"prompt": "the", "max_tokens": 100, "seed": 1}
        thread = threading.Thread(target=lambda: answers.append(client.post("/v1/generate", json=body)))
        thread.start()
        wait_for(lambda: workers.metric("gramophone_num_requests_running").get("1") == 1)
        for pid in workers.pids():
            os.kill(pid, signal.SIGTERM)
        wait_for(lambda: [line["event"] for line in workers.lines()].count("Shutting down") == 2)
        workers.supervisor.send_signal(signal.SIGTERM)
        wait_for(lambda: _is_refused(workers.url))  # new clients are not left waiting
        thread.join()
        assert answers[0].json()["usage"]["completion_tokens"] == 100


def _is_refused(url):
    """True if connecting fails; a connection made before the last socket is closed is reset."""
    try:
        with contextlib.suppress(httpx.ReadError):
            httpx.get(f"{url}/health/live")
    except httpx.ConnectError:
        return True
    return False


def test_a_second_signal_ends_all_at_once(registry, tmp_path):
    with running_workers(registry, tmp_path, GRAMOPHONE_MODELS="slow") as workers:
        client = workers.client(1)
        body = {"prompt": "the", "max_tokens": 4000, "seed": 1}
        thread = threading.Thread(target=lambda: _cut_off(client, body))
        thread.start()
        wait_for(lambda: workers.metric("gramophone_num_requests_running").get("1") == 1)
        pids = workers.pids()
        workers.supervisor.send_signal(signal.SIGTERM)
        wait_for(lambda: any(line["event"] == "Shutting down" for line in workers.lines()))
        workers.supervisor.send_signal(signal.SIGTERM)
        assert workers.supervisor.wait(timeout=5) == -signal.SIGTERM
        thread.join()
        assert not any(_lives(pid) for pid in pids)


def test_workers_end_when_their_supervisor_is_killed(registry, tmp_path, short_folder):
    settings = {"GRAMOPHONE_MODELS": "mixture", "TMPDIR": str(short_folder)}
    with running_workers(registry, tmp_path, **settings) as workers:
        pids = workers.pids()
        (folder,) = (path.parent for path in short_folder.glob("gramophone-*/0.sock"))
        assert folder.stat().st_mode & 0o777 == 0o700  # no other user can open the workers' sockets
        workers.supervisor.kill()
        wait_for(lambda: not any(_lives(pid) for pid in pids))
        assert not list(short_folder.glob("gramophone-*"))


HANG_UPS = """
import os, subprocess, sys
from models.checkpoint import load
from service.cli.main import main
load.FAMILIES["fake"] = ("tests.support.fake_models", "SlowFakeModel")
kill = f"sleep 0.2; for i in $(seq 40); do kill -HUP {os.getpid()}; sleep 0.1; done"
subprocess.Popen(["sh", "-c", kill])
sys.argv = ["gramophone", "serve"]
main()
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_hang_ups_while_it_starts_end_no_service(registry, tmp_path, workers):
    settings = {"GRAMOPHONE_MODELS": "mixture", "GRAMOPHONE_WORKERS": workers}
    with running_process(registry, tmp_path / "log", program=HANG_UPS, **settings) as (child, _):
        time.sleep(2)
        assert child.poll() is None


def test_after_a_hang_up_all_workers_show_the_renewed_certificate(registry, tmp_path):
    certificate, key = write_certificate(tmp_path)
    files = {"GRAMOPHONE_TLS_CERTIFICATE": str(certificate), "GRAMOPHONE_TLS_KEY": str(key)}
    settings = {"GRAMOPHONE_MODELS": "mixture", "GRAMOPHONE_WORKERS": "2", **files}
    with running_process(registry, tmp_path / "log", **settings) as (child, url):
        address = "127.0.0.1", int(url.rpartition(":")[2])
        old = ssl.get_server_certificate(address)
        write_certificate(tmp_path)
        child.send_signal(signal.SIGHUP)
        shown = [old]
        wait_for(lambda: shown.append(ssl.get_server_certificate(address)) or old not in shown[-16:])
    assert shown[-1] == certificate.read_text()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"GRAMOPHONE_REGISTRY": "/nowhere"}, "/nowhere"),
        ({"GRAMOPHONE_HOST": "192.0.2.1"}, "cannot listen on 192.0.2.1"),
        # before it listens
        (
            {"GRAMOPHONE_HOST": "192.0.2.1", "GRAMOPHONE_TLS_KEY": "/nowhere"},
            "GRAMOPHONE_TLS_CERTIFICATE is unset",
        ),
        ({"GRAMOPHONE_PROT": "8000"}, "did you mean GRAMOPHONE_PORT?"),
    ],
)
def test_invalid_setting_ends_the_start_with_one_line(registry, settings, reason):
    ours = {
        "GRAMOPHONE_WORKERS": "2",
        "GRAMOPHONE_REGISTRY": str(registry.root),
        "GRAMOPHONE_MODELS": "mixture",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRAMOPHONE_")}  # noqa: TID251
    started_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "service.cli", "serve"],
        cwd=ROOT,
        env={**environment, **ours, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert time.monotonic() - started_s < 30


def _cut_off(client, body):
    with contextlib.suppress(httpx.HTTPError):
        client.post("/v1/generate", json=body)


def _lives(pid):
    return Path(f"/proc/{pid}").exists()
