"""The program as a user starts it: quickly trained default models behind `gramophone serve`."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.contract.conftest import fake_family, registry  # noqa: F401 - fixtures of this folder too
from tests.support.http import free_port

GRAMOPHONE = [sys.executable, "-m", "service.cli"]


def wait_until_ready(process, url, seconds=60.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, "the service ended by itself"
        try:
            if set(httpx.get(f"{url}/health/ready").json()["models"].values()) == {"loaded"}:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"the service was not ready in {seconds} s")


def made_once(tmp_path_factory, name, make):
    """Return a folder that is made by a function of its path, once for all test processes."""
    temporary = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # noqa: TID251 - set by pytest-xdist
        temporary = temporary.parent  # of the run, not of this process
    folder = temporary / name
    with (temporary / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(Path(f"{folder}.part"))
            Path(f"{folder}.part").rename(folder)
    return folder


def train_default_models(folder):
    """Train the default models for a few steps only."""
    command = [*GRAMOPHONE, "train", "quickstart", "--name", "mixture", "--registry", str(folder)]
    sizes = ("train.max_steps=20", "neural.hidden_size=32", "neural.embedding_size=32")
    for assignment in (*sizes, "mixture.drop_unused=false"):
        command += ["--set", assignment]
    subprocess.run(command, check=True)


@pytest.fixture(scope="session")
def default_models(tmp_path_factory):
    """Registry of the default models."""
    return made_once(tmp_path_factory, "default_models", train_default_models)


@pytest.fixture(scope="session")
def start(default_models):
    """Starts a service and waits until it is ready; ends what still runs afterwards."""
    processes = []

    def run(*options):
        url = f"http://127.0.0.1:{(port := free_port())}"
        command = [*GRAMOPHONE, "serve", "--registry", str(default_models), "--port", str(port), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes.append(process)
        wait_until_ready(process, url)
        return process, url

    yield run
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def served(start):
    """The address of a service that is left running."""
    return start()[1]
