"""Seconds until the first answer of a service, cold and warm, beside a bare FastAPI and torch service.

    python tests/benchmarks/bench_start.py [--rounds 5] [--registry DIR]

"Cold" has an empty folder of compiled kernels; "shipped" has the kernels of one processor level, compiled before by
`gramophone precompile`, on a processor of which only that level is used. Also the time to train an n-gram model on
400 lines, cold and warm. The peer imports FastAPI and torch and builds an LSTM of the same shape, without weights.
Rows take turns in every round; figures are medians. In an empty registry the quickstart's models are trained first.
"""

import argparse
import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from preparation import GRAMOPHONE, QUIET, free_port, quickstart, registry_at

from models.kernels.target import supported_levels
from training.progress import Progress
from training.texts import read_default_corpus

PEER = """
import sys, fastapi, torch, uvicorn
network = torch.nn.LSTM(256, 512).eval(); output = torch.nn.Linear(512, 4000)
app = fastapi.FastAPI()
@app.post("/v1/score")
async def score(request: fastapi.Request):
    await request.body()
    with torch.inference_mode():
        hidden, _ = network(torch.zeros(10, 1, 256))
        return {"logprob": float(torch.log_softmax(output(hidden), -1)[..., 0].sum())}
uvicorn.run(app, port=int(sys.argv[1]), access_log=False, log_level="error")
"""
BODY = b'{"texts": ["the number of items in the list"]}'
REQUEST = (
    b"POST /v1/score HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
LIMIT_S = 300


def answers(port):
    """True if the service on a port scores a text."""
    with socket.socket() as s:
        if s.connect_ex(("127.0.0.1", port)) != 0:
            return False
        s.sendall(REQUEST)
        return b" 200 " in s.recv(100)


def first_answer_s(command, **environment):
    """Start a service, and return the seconds until its first answer."""
    port = free_port()
    ours = {**os.environ, **environment, "GRAMOPHONE_PORT": str(port)}  # noqa: TID251 - of a child process
    started_s = time.perf_counter()
    with subprocess.Popen(
        [*command, str(port)] if command[-1] == PEER else command, env=ours, **QUIET
    ) as server:
        try:
            while not answers(port):
                if server.poll() is not None or time.perf_counter() - started_s > LIMIT_S:
                    raise RuntimeError(f"{command[:3]} does not answer")
                time.sleep(0.02)
            return time.perf_counter() - started_s
        finally:
            server.terminate()


def command_s(command, **environment):
    """Run a command, and return its seconds."""
    started_s = time.perf_counter()
    subprocess.run(command, env={**os.environ, **environment}, check=True, **QUIET)  # noqa: TID251 - of a child process
    return time.perf_counter() - started_s


def measurements(folder, registry):
    """Return functions that measure a row each, by title."""
    numbers = itertools.count()
    level = supported_levels()[-1].name  # every x86-64 server of the last ten years has it
    shipped, warm = str(folder / "shipped"), str(folder / "warm")
    command_s([*GRAMOPHONE, "precompile", "--target", level, "--folder", shipped])
    text = folder / "text.txt"
    text.write_text("\n".join(next(iter(read_default_corpus(Progress()))).sentences[:400]), encoding="utf-8")

    def empty():
        return str(folder / f"empty-{next(numbers)}")

    def serve(kernels, **environment):
        return first_answer_s(
            [*GRAMOPHONE, "serve"], GRAMOPHONE_REGISTRY=str(registry), NUMBA_CACHE_DIR=kernels, **environment
        )

    def train(kernels):
        options = ["--name", "few", "--corpus", str(text), "--registry", empty()]
        return command_s([*GRAMOPHONE, "train", "ngram", *options], NUMBA_CACHE_DIR=kernels)

    serve(warm)
    train(warm)
    return {
        "bare FastAPI and torch": lambda: first_answer_s([sys.executable, "-c", PEER]),
        "three models, warm": lambda: serve(warm),
        "n-gram model alone, warm": lambda: serve(warm, GRAMOPHONE_MODELS="ngram"),
        f"three models, shipped kernels ({level})": lambda: serve(shipped, NUMBA_CPU_NAME=level),
        "three models, cold": lambda: serve(empty()),
        "train ngram on 400 lines, warm": lambda: train(warm),
        "train ngram on 400 lines, cold": lambda: train(empty()),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--registry", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, registry_at(options.registry) as registry:
        quickstart(registry)
        rows = measurements(Path(folder), registry)
        seconds = {title: [] for title in rows}
        for _ in range(options.rounds):
            for title, measure in rows.items():
                seconds[title].append(measure())
    peer_s = statistics.median(next(iter(seconds.values())))
    for title, found in seconds.items():
        middle, span = statistics.median(found), f"{min(found):.2f} to {max(found):.2f}"
        print(f"{title:45} {middle:6.2f} s ({span})  {middle / peer_s:5.2f} x the bare service")


if __name__ == "__main__":
    main()
