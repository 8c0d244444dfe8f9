"""`gramophone quickstart --serve`: answers from the first model on, while the others are trained."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.support.http import free_port
from tests.system.conftest import GRAMOPHONE

REQUEST = {"texts": ["the first answer"]}


def answer(url, seconds):
    """Ask until there is an answer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            reply = httpx.post(f"{url}/v1/score", json=REQUEST)
            if reply.is_success:
                return reply.json()
        time.sleep(0.2)
    raise AssertionError(f"no answer in {seconds} s")


def process_group(number):
    """Return whether a process group has a process."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def trainer_of(process):
    """Return the process that trains."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


@pytest.fixture
def quickstart(tmp_path):
    """Yield a function that starts a quickstart in the test's registry, and returns it with its address."""
    with contextlib.ExitStack() as ending:

        def run():
            port = free_port()
            command = [
                *GRAMOPHONE,
                "quickstart",
                "--if-empty",
                "--serve",
                "--registry",
                str(tmp_path / "registry"),
            ]
            environment = {**os.environ, "GRAMOPHONE_PORT": str(port)}  # noqa: TID251 - of the child process
            process = ending.enter_context(subprocess.Popen(command, env=environment))
            ending.callback(process.kill)
            return process, f"http://127.0.0.1:{port}"

        yield run


def test_a_stopped_quickstart_answers_at_once_when_it_is_started_again(quickstart, tmp_path):
    process, url = quickstart()
    assert answer(url, 120)["model"] == "ngram@1"
    trainer = trainer_of(process)
    assert process_group(trainer)
    assert [one["id"] for one in httpx.get(f"{url}/v1/models").json()["data"]] == ["ngram@1"]
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert not process_group(trainer)
    assert [path.name for path in (tmp_path / "registry").glob("[a-z]*") if path.is_dir()] == ["ngram"]

    process, url = quickstart()
    assert answer(url, 30)["model"] == "ngram@1"
    deadline = time.monotonic() + 60
    while not (training := httpx.get(f"{url}/v1/models").json().get("training")):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert training[0]["name"] == "mixture"
    trainer = trainer_of(process)
    process.terminate()
    process.wait(60)
    assert not process_group(trainer)
