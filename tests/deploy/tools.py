"""External programs for the tests of deploy/, and service processes with a small n-gram model."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.support.certificates import trusting
from tests.support.http import free_port

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # noqa: TID251 - the environment of children


def tool(name, package):
    """Return the path of a program; if it is missing the test fails and names its package."""
    found = shutil.which(name, path=PATH)
    assert found, f"{name} is not installed: it comes with {package}"
    return found


def run(*command, **options):
    """Run a program that must succeed; return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, **options)
    assert done.returncode == 0, f"{Path(command[0]).name}: {done.stdout}{done.stderr}"
    return done.stdout


GRAMOPHONE = (sys.executable, "-m", "service.cli")
LINES = ("the cat sat on the mat", "the dog sat on the cat", "a dog saw the cat on the mat") * 20
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def train_small(registry):
    """Publish a model called `small`."""
    registry.mkdir()
    corpus = registry.parent / "corpus.txt"
    corpus.write_text("\n".join(LINES), encoding="utf-8")
    options = ["--name", "small", "--corpus", str(corpus), "--registry", str(registry)]
    settings = ["--set", "tokenizer.kind=word", "--set", "ngram.order=2"]
    command = [*GRAMOPHONE, "train", "ngram", *options, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def wait_until_it_answers(url, process, path, verify=True):
    """Wait until a path answers 200."""
    deadline = time.monotonic() + 240  # kernels are compiled on first use
    while time.monotonic() < deadline:
        assert process.poll() is None, f"what should answer at {url} has ended"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url + path, verify=verify).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"{url}{path} did not become ready")


@contextlib.contextmanager
def serving_processes(registry, names, **settings):
    """Run a service for each process name; yield process and port by name. Settings lack the GRAMOPHONE_ prefix."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GRAMOPHONE_")}  # noqa: TID251
    started = {}
    try:
        for name in names:
            port = free_port()
            ours = {"REGISTRY": str(registry), "PORT": str(port), "PROCESS_NAME": name, **settings}
            environment = {**clean, **{f"GRAMOPHONE_{key}": value for key, value in ours.items()}}
            started[name] = subprocess.Popen([*GRAMOPHONE, "serve"], env=environment, **QUIET), port
        certificate = settings.get("TLS_CERTIFICATE")
        scheme = "https" if certificate else "http"
        for process, port in started.values():
            url = f"{scheme}://127.0.0.1:{port}"
            wait_until_it_answers(url, process, "/health/ready", trusting(certificate))
        yield started
    finally:
        for process, _ in started.values():
            process.kill()
            process.wait()
