"""A short text scored by an n-gram model: the service beside the short program that a user would write instead.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_short_requests.py [--rounds 5] [--requests 20000] [--log-level info]

The program is FastAPI and KenLM's module with the same model, in one process like the service. Each text is sent once,
so nothing can be remembered; the greatest difference of 100 scores is printed. Rounds alternate: read the ratios. A row
compares an operation that does nothing, added to the service for this benchmark, with an empty route of the program.
Without the public data the model is of Python's documentation. Nothing is written outside a temporary folder.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from preparation import (
    QUIET,
    data_folder,
    free_port,
    gramophone,
    novels_or_documentation,
    peer,
    wait_until_ready,
)

from service.bench.driver import run_load
from service.bench.plan import ClosedLoop, LoadSettings, Request, Target
from service.bench.results import summarise_load

peer("kenlm", "ufal.kenlm>=26")
PROGRAM = """
import math, sys
import fastapi, kenlm, pydantic, uvicorn
model, app = kenlm.Model(sys.argv[2]), fastapi.FastAPI()
class ScoreRequest(pydantic.BaseModel):
    texts: list[str]
class Result(pydantic.BaseModel):
    logprob: float
    num_tokens: int
class Reply(pydantic.BaseModel):
    results: list[Result]
@app.post("/v1/score")
async def score(request: ScoreRequest) -> Reply:
    return Reply(results=[
        Result(logprob=model.score(text) * math.log(10), num_tokens=len(text.split()) + 1) for text in request.texts
    ])
@app.post("/v1/nothing")
async def nothing():
    return {}
@app.get("/health/ready")
async def ready():
    return {}
uvicorn.run(app, port=int(sys.argv[1]), access_log=False, log_level="error", loop="uvloop", http="httptools")
"""
SERVICE = """
from service.operations.operation import ModelOperation
from service.routes import operations
from service.schemas.wire import WireModel
class NothingRequest(WireModel):
    "Ask for nothing."
    model: str | None = None
class Nothing(ModelOperation):
    "Do nothing."
    request, may_run_inline = NothingRequest, True
    def run(self):
        return {}
        yield
operations.router.operation(Nothing, "/v1/nothing", "do_nothing", "Score", dict)
from service.cli.main import main
main()
"""
CLIENTS = 16


def texts_of(lines, count):
    """Return distinct texts of 8 to 24 words."""
    words, choice = [word for line in lines for word in line.split()], random.Random(3)
    begins = (choice.randrange(len(words) - 24) for _ in range(2 * count))
    return [*dict.fromkeys(" ".join(words[b : b + choice.randrange(8, 25)]) for b in begins)][:count]


def ask(port, body):
    """Return the score of a text."""
    headers = {"content-type": "application/json"}
    return httpx.post(f"http://127.0.0.1:{port}/v1/score", content=body, headers=headers).json()["results"][
        0
    ]["logprob"]


def rate(port, bodies, path):
    """Send each body once; return the replies per second and the median latency in ms."""
    requests = [Request(path, body) for body in bodies]
    settings = LoadSettings(num_requests=len(requests))
    summary = summarise_load(
        run_load(Target.parse(f"http://127.0.0.1:{port}"), requests, ClosedLoop(CLIENTS), settings)
    )
    assert not summary.errors, summary.errors
    return summary.achieved_per_s, summary.latency_ms.p50


def compare(name, ports, bodies, of_peer, rounds, path="/v1/score"):
    """Print the rates of both by turns, and the median of their ratio with its range."""
    both = []
    for number in range(rounds + 1):  # the first warms up
        ours, theirs = (
            rate(port, given[number :: rounds + 1], path)
            for port, given in zip(ports, (bodies, of_peer), strict=True)
        )
        both.append((ours, theirs))
    ratios = sorted(ours[0] / theirs[0] for ours, theirs in both[1:])
    (ours, ms), (theirs, their_ms) = (
        [statistics.median(column) for column in zip(*one, strict=True)]
        for one in zip(*both[1:], strict=True)
    )
    print(
        f"{name:26} {ours:7,.0f}/s (p50 {ms:.2f} ms)   program {theirs:7,.0f}/s (p50 {their_ms:.2f} ms)   "
        f"ratio {statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--log-level", default="warning")
    given = parser.parse_args()
    splits = novels_or_documentation(data_folder(), sentences=100_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text").write_text("\n".join(splits["train"]), encoding="utf-8")
        registry, arpa = ("--registry", folder / "registry"), folder / "model.arpa"
        settings = ("--set", "tokenizer.kind=word", "--set", "ngram.order=5")
        gramophone("train", "ngram", "--corpus", folder / "text", "--name", "m", *registry, *settings)
        gramophone("models", "export-arpa", "m", arpa, *registry)
        ports = free_port(), free_port()
        environment = {**os.environ, "GRAMOPHONE_LOG_LEVEL": given.log_level}  # noqa: TID251 - no service
        serve = [sys.executable, "-c", SERVICE, "serve", *map(str, registry), "--port", str(ports[0])]
        servers = [
            subprocess.Popen(serve, env=environment, **QUIET),
            subprocess.Popen([sys.executable, "-c", PROGRAM, str(ports[1]), str(arpa)], **QUIET),
        ]
        try:
            for port in ports:
                wait_until_ready(port)
            texts = texts_of([*splits["test"], *splits["train"]], given.requests)
            plain = [json.dumps({"texts": [text]}).encode() for text in texts]
            differences = [abs(ask(ports[0], body) - ask(ports[1], body)) for body in plain[:100]]
            print(f"greatest difference of 100 scores: {max(differences):.1e}")
            compare("one text", ports, plain, plain, given.rounds)
            words = [json.dumps({"texts": [text], "detail": "word"}).encode() for text in texts]
            compare("with detail: word", ports, words, plain, given.rounds)
            empty = [b"{}"] * 2 * given.requests
            compare("an operation without work", ports, empty, empty, given.rounds, "/v1/nothing")
        finally:
            for server in servers:
                server.kill()
                server.wait()


if __name__ == "__main__":
    main()
