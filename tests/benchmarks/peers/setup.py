"""Peers of the comparison: workloads, variants, LitServe's environment, and servers that take turns."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from preparation import REASON, free_port

from service.bench.plan import Request, Target

VOCAB_SIZE = 16_000
SCORED_TOKENS, PROMPT_TOKENS, NEW_TOKENS = 26, 8, 32

OURS = {"float32": "gramophone float32", "int8": "gramophone int8"}
"""Names of our servers, by precision."""
LITSERVE, FASTAPI = "LitServe", "FastAPI"
PEERS = (LITSERVE, FASTAPI)


class Workload(NamedTuple):
    """One kind of request.

    Attributes:
        name: the peers' endpoint.
        title: description of the work.
        path: our endpoint.
        num_ids: token ids in a request.
        ours: our body from token ids and a seed.
        theirs: the peers' body.
        our_answer: the score or the ids in our reply.
        their_answer: the same in a peer's reply.
        bars: required peak rate over the better peer's, for each of our precisions.
        stretch: factor for the duration of a closed loop: batches of long requests come in bursts.
    """

    name: str
    title: str
    path: str
    num_ids: int
    ours: Callable[[list[int], int], dict[str, Any]]
    theirs: Callable[[list[int], int], dict[str, Any]]
    our_answer: Callable[[Any], Any]
    their_answer: Callable[[Any], Any]
    bars: dict[str, float]
    stretch: int

    def requests(self, server, count, random):
        """Return requests never sent before, for a server given by name."""
        path, body = (f"/{self.name}", self.theirs) if server in PEERS else (self.path, self.ours)
        ids = random.integers(3, VOCAB_SIZE, (count, self.num_ids)).tolist()
        return [Request(path, json.dumps(body(row, seed)).encode()) for seed, row in enumerate(ids)]

    def answer(self, server, body):
        """Return the score or ids in a server's reply."""
        return (self.their_answer if server in PEERS else self.our_answer)(json.loads(body))


SCORE = Workload(
    name="score",
    title=f"scoring {SCORED_TOKENS} tokens",
    path="/v1/score",
    num_ids=SCORED_TOKENS,
    ours=lambda ids, _seed: {"token_ids": [ids], "eos": False},
    theirs=lambda ids, _seed: {"ids": ids},
    our_answer=lambda reply: reply["results"][0]["logprob"],
    their_answer=lambda reply: reply["logprob"],
    bars={"float32": 1.5, "int8": 3.0},
    stretch=1,
)
GENERATE = Workload(
    name="generate",
    title=f"generating {NEW_TOKENS} tokens",
    path="/v1/generate",
    num_ids=PROMPT_TOKENS,
    ours=lambda ids, seed: {"prompt": ids, "max_tokens": NEW_TOKENS, "ignore_eos": True, "seed": seed},
    theirs=lambda ids, seed: {"ids": ids, "max_tokens": NEW_TOKENS, "seed": seed},
    our_answer=lambda reply: reply["choices"][0]["token_ids"],
    their_answer=lambda reply: reply["ids"],
    bars={"float32": 3.0, "int8": 8.0},
    stretch=2,
)


_HERE = Path(__file__).parent

VARIANTS = {
    LITSERVE: (
        (("--workers=2", "--threads=1"), ("--workers=1", "--threads=2"), ("--workers=1", "--threads=1")),
        (("--batch-size=32",), ("--batch-size=16",), ("--batch-size=64",)),
        (("--batch-timeout=0.005",), ("--batch-timeout=0.001",), ("--batch-timeout=0.01",)),
        ((), ("--fast-queue",)),
    ),
    FASTAPI: (
        (("--threads=1",), ("--threads=2",)),
        (("--handlers=2",), ("--handlers=0",), ("--handlers=40",)),
    ),
}
"""Choices made one after the other: the options to try for each."""

BUSY = {LITSERVE: 64, FASTAPI: 4}
"""Number of clients at which a peer is close to its peak."""

CHOSEN = {
    "score": {
        LITSERVE: ("--workers=2", "--threads=1", "--batch-size=32", "--batch-timeout=0.005"),
        FASTAPI: ("--threads=1", "--handlers=2"),
    },
    "generate": {
        LITSERVE: ("--workers=2", "--threads=1", "--batch-size=16", "--batch-timeout=0.005", "--fast-queue"),
        FASTAPI: ("--threads=1", "--handlers=40"),
    },
}


def litserve_command(python, version, endpoint, options):
    """Return the command that starts LitServe with one endpoint and the model in a folder."""
    return [python, str(_HERE / "litserve_app.py"), str(version), endpoint, *options]


def fastapi_command(version, options):
    """Return the command that starts the FastAPI handlers."""
    return [sys.executable, str(_HERE / "fastapi_app.py"), str(version), *options]


LITSERVE_PACKAGE = "litserve==0.2.19"
FOLDER = Path(sys.prefix) / "peers"
"""Folder inside the environment whose packages it shares; it is deleted with the environment."""


def litserve_python():
    """Return an interpreter with LitServe and our torch; the environment is created on first use.

    If that fails, print the reason and return None.
    """
    python = FOLDER / "bin" / "python"
    done = FOLDER / LITSERVE_PACKAGE
    if not done.exists():
        print(
            f"installing {LITSERVE_PACKAGE} into {FOLDER}, once; no other package of this project's changes",
            flush=True,
        )
        venv.create(FOLDER, clear=True, with_pip=True)
        own = sysconfig.get_path("purelib", vars={"base": str(FOLDER)})
        # Python finds the folder named here after the environment's own packages
        (Path(own) / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
        install = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            LITSERVE_PACKAGE,
        ]
        if subprocess.run(install, check=False).returncode:
            print(
                f"{REASON}LitServe: {LITSERVE_PACKAGE} could not be installed; that needs the package index once"
            )
            return None
        done.touch()
    ask = "import torch; print(torch.__version__)"
    theirs = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    if theirs != version("torch"):
        sys.exit(f"{FOLDER} has torch {theirs}, this environment {version('torch')}; delete {FOLDER}")
    return str(python)


_PATIENCE_S = 120


class Server:
    """Server in a process group of its own, ready and stopped (SIGSTOP).

    Args:
        command: command that starts it; `--port` and a number are added, and it answers GET /health/ready.
        log: file for its output.
    """

    def __init__(self, command, log):
        self._port = free_port()
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port)], stdout=file, stderr=file, start_new_session=True
            )
        try:
            self._wait_until_ready(log)
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def turn(self):
        """Let the server run during the block; yield its address."""
        self._signal(signal.SIGCONT)
        try:
            yield Target.parse(f"http://127.0.0.1:{self._port}")
        finally:
            self._signal(signal.SIGSTOP)

    def close(self):
        """Kill all its processes."""
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number):
        os.killpg(self._process.pid, number)

    def _wait_until_ready(self, log):
        until = time.monotonic() + _PATIENCE_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until:
                sys.exit(f"{self._process.args} did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.2)

    def _is_ready(self):
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), timeout=5) as s,
        ):
            s.sendall(b"GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            return b" 200 " in s.recv(100)
        return False


@contextlib.contextmanager
def running(commands, folder):
    """Start the servers one after the other; yield them by name."""
    with contextlib.ExitStack() as stack:
        servers = {}
        for name, command in commands.items():
            servers[name] = Server(command, Path(folder) / f"{name}.log".replace("/", "-"))
            stack.callback(servers[name].close)
        yield servers
