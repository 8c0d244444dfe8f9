"""Peers of the comparison: workloads, settings to try, the peers' environment, and servers that take turns."""

import contextlib
import itertools
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

GRAMOPHONE, LITSERVE, FASTAPI = "Gramophone", "LitServe", "FastAPI"
PRECISIONS = ("float32", "int8")


class Contestant(NamedTuple):
    """A server in the comparison: its framework, the runtime of its model, and the precision."""

    framework: str
    runtime: str
    precision: str

    @property
    def is_peer(self):
        """False for our own servers."""
        return self.framework != GRAMOPHONE

    @property
    def ours(self):
        """Our server of the same precision."""
        return OURS[self.precision]

    def __str__(self):
        return f"{self.framework:11}{self.runtime:12}{self.precision:8}"


OURS = {
    "float32": Contestant(GRAMOPHONE, "torch", "float32"),
    "int8": Contestant(GRAMOPHONE, "own kernels", "int8"),
}
RUNTIMES = ("torch", "onnxruntime")
PEERS = [Contestant(*parts) for parts in itertools.product((LITSERVE, FASTAPI), RUNTIMES, PRECISIONS)]


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
    stretch: int

    def requests(self, contestant, count, random):
        """Return requests never sent before, for a contestant."""
        return self.requests_for(contestant, random.integers(3, VOCAB_SIZE, (count, self.num_ids)).tolist())

    def requests_for(self, contestant, texts):
        """Return a request for each text of token ids."""
        path, body = (f"/{self.name}", self.theirs) if contestant.is_peer else (self.path, self.ours)
        return [Request(path, json.dumps(body(ids, seed)).encode()) for seed, ids in enumerate(texts)]

    def answer(self, contestant, body):
        """Return the score or ids in a contestant's reply."""
        return (self.their_answer if contestant.is_peer else self.our_answer)(json.loads(body))


SCORE = Workload(
    name="score",
    title=f"scoring {SCORED_TOKENS} tokens",
    path="/v1/score",
    num_ids=SCORED_TOKENS,
    ours=lambda ids, _seed: {"token_ids": [ids], "eos": False},
    theirs=lambda ids, _seed: {"ids": ids},
    our_answer=lambda reply: reply["results"][0]["logprob"],
    their_answer=lambda reply: reply["logprob"],
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
    stretch=2,
)


_HERE = Path(__file__).parent

LITSERVE_PACKAGES = ("litserve==0.2.19",)
ONNX_PACKAGES = ("onnx==1.23.2", "onnxruntime==1.32.0")
FOLDER = Path(sys.prefix) / "peers"
"""Folder inside the environment whose packages it shares; it is deleted with the environment."""
PYTHON = FOLDER / "bin" / "python"


def installed(*packages):
    """Install packages for the peers on first use; if that fails, print the reason and return False."""
    done = FOLDER / "+".join(packages)
    if not done.exists():
        wanted = " and ".join(packages)
        print(
            f"installing {wanted} into {FOLDER}, once; no other package of this project's changes", flush=True
        )
        if not any(FOLDER.glob("*==*")):
            _create_environment()
        pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, *packages], check=False).returncode:
            print(f"{REASON}{wanted} could not be installed; that needs the package index once")
            return False
        done.touch()
    ask = "import torch; print(torch.__version__)"
    theirs = subprocess.run([PYTHON, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    if theirs != version("torch"):
        sys.exit(f"{FOLDER} has torch {theirs}, this environment {version('torch')}; delete {FOLDER}")
    return True


def import_onnx_from_peers():
    """Let this process import onnx and onnxruntime too; return False if they cannot be installed."""
    sys.path.append(_packages_of(FOLDER))
    return installed(*ONNX_PACKAGES)


def _create_environment():
    venv.create(FOLDER, clear=True, with_pip=True)
    # Python finds the folder named here after the environment's own packages
    shared = sysconfig.get_path("purelib")
    (Path(_packages_of(FOLDER)) / "shared.pth").write_text(f"{shared}\n", encoding="utf-8")


def _packages_of(environment):
    return sysconfig.get_path("purelib", vars={"base": str(environment)})


def available_peers():
    """Return the peers whose packages are there or can be installed."""
    missing = set()
    if not installed(*LITSERVE_PACKAGES):
        missing.add(LITSERVE)
    if not import_onnx_from_peers():
        missing.add("onnxruntime")
    return [peer for peer in PEERS if not missing & set(peer)]


def peer_command(peer, models, endpoint, *options):
    """Return the command that starts a peer with the models of its runtime."""
    command = [str(PYTHON), str(_HERE / f"{peer.framework.lower()}_app.py"), str(models[peer.runtime])]
    command += ["--runtime", peer.runtime, "--precision", peer.precision, *options]
    return [*command, "--endpoint", endpoint] if peer.framework == LITSERVE else command


_PATIENCE_S = 120
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Settings of glibc for peers: freed memory is reused, so that large temporaries need no new pages every time."""


class Server:
    """Server in a process group of its own, ready and stopped (SIGSTOP).

    Args:
        contestant: what it is.
        command: command that starts it; `--port` and a number are added, and it answers GET /health/ready.
        log: file for its output.
    """

    def __init__(self, contestant, command, log):
        self.contestant = contestant
        self._port = free_port()
        memory = _KEEP_MEMORY if contestant.is_peer else {}
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port)],
                stdout=file,
                stderr=file,
                start_new_session=True,
                env=os.environ | memory,  # noqa: TID251 - benchmarks are no part of the service
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

    def cpu_s(self):
        """Return the CPU time of its processes so far, in seconds."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # the process has ended
                fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
                group, user, system = (int(fields[place]) for place in (2, 11, 12))
                ticks += (user + system) * (group == self._process.pid)
        return ticks / os.sysconf("SC_CLK_TCK")

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
    """Start servers one after the other, from pairs of contestant and command by any key; yield them by key."""
    with contextlib.ExitStack() as stack:
        servers = {}
        for number, (key, (contestant, command)) in enumerate(commands.items()):
            servers[key] = Server(contestant, command, Path(folder) / f"{number}.log")
            stack.callback(servers[key].close)
        yield servers
