"""The program as a user starts it: quickly trained default models behind `gramophone serve`."""

import socket
import subprocess
import sys
import time

import httpx
import pytest

GRAMOPHONE = [sys.executable, "-m", "service.cli"]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


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


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    """The default models, trained for a few steps only."""
    folder = tmp_path_factory.mktemp("system") / "registry"
    command = [*GRAMOPHONE, "train", "quickstart", "--name", "mixture", "--registry", str(folder)]
    command += [
        "--set",
        "train.max_steps=20",
        "--set",
        "neural.hidden_size=32",
        "--set",
        "neural.embedding_size=32",
    ]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="session")
def start(registry):
    """Starts a service and waits until it is ready; ends what still runs afterwards."""
    processes = []

    def run(*options):
        url = f"http://127.0.0.1:{(port := free_port())}"
        command = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(port), *options]
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
