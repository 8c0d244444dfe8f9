"""The service beside a bare FastAPI route that returns an empty reply: cost and throughput of our layers.

    python tests/benchmarks/bench_service.py [--requests 1000] [--registry DIR]

Server and client are processes on the same machine in a closed loop: it measures peak throughput and
latency without a queue, not latency under a given load. In an empty registry the quickstart's
models are trained first. Nothing is written outside it, or a temporary folder.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from preparation import GRAMOPHONE, QUIET, free_port, quickstart, registry_at, wait_until_ready

from service.bench.driver import run_load
from service.bench.plan import ClosedLoop, LoadSettings, Request, Target
from service.bench.results import summarise_load

NO_OP = """
import fastapi, sys, uvicorn
app = fastapi.FastAPI()
@app.post("/v1/next-token")
async def nothing(request: fastapi.Request):
    await request.body()
    return fastapi.Response(b"{}", media_type="application/json")
@app.get("/health/ready")
async def ready():
    return {}
uvicorn.run(app, port=int(sys.argv[1]), access_log=False, log_level="error", loop="uvloop", http="httptools")
"""
WORDS = (
    "Return",
    "the",
    "number",
    "of",
    "items",
    "in",
    "the",
    "list",
    "or",
    "raise",
    "an",
    "error",
    "if",
    "it",
    "fails",
)


def closed_loop(port, path, bodies, clients, count):
    """Send a number of requests; return the summary."""
    target, requests = Target.parse(f"http://127.0.0.1:{port}"), [Request(path, body) for body in bodies]
    summary = summarise_load(
        run_load(target, requests, ClosedLoop(clients), LoadSettings(num_requests=count))
    )
    assert not summary.errors, summary.errors
    return summary


def compare(name, port, path, bodies, baseline=None):
    """Print p50 and p99 of one connection and the throughput of sixteen: the median of three rounds."""
    closed_loop(port, path, bodies, 1, 50)
    rounds = [closed_loop(port, path, bodies, 1, len(bodies)).latency_ms for _ in range(3)]
    p50 = statistics.median(latency.p50 for latency in rounds)
    p99 = statistics.median(latency.highest for latency in rounds)
    rate = statistics.median(
        closed_loop(port, path, bodies, 16, len(bodies)).achieved_per_s for _ in range(3)
    )
    ratio = "" if baseline is None else f"   {rate / baseline:5.2f} x no-op"
    print(
        f"{name:34} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   16 connections {rate:7,.0f}/s{ratio}",
        flush=True,
    )
    return rate


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--registry", type=Path, default=None)
    given = parser.parse_args()
    count = given.requests
    contexts = [" ".join(WORDS[: 1 + i % len(WORDS)]) for i in range(count)]
    with registry_at(given.registry) as registry:
        quickstart(registry)
        ports = free_port(), free_port()
        serve = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(ports[1])]
        servers = [
            subprocess.Popen([sys.executable, "-c", NO_OP, str(ports[0])], **QUIET),
            subprocess.Popen(serve, **QUIET),
        ]
        try:
            for port in ports:
                wait_until_ready(port)
            bodies = [json.dumps({"context": c, "top_k": 10, "model": "ngram"}).encode() for c in contexts]
            baseline = compare("no-op route", ports[0], "/v1/next-token", bodies)
            for model in ("ngram", "lstm", "mixture"):
                bodies = [json.dumps({"context": c, "top_k": 10, "model": model}).encode() for c in contexts]
                compare(f"next-token, {model}", ports[1], "/v1/next-token", bodies, baseline)
                few = [json.dumps({"texts": [c], "model": model}).encode() for c in contexts[: count // 4]]
                compare(f"score one text, {model}", ports[1], "/v1/score", few, baseline)
        finally:
            for server in servers:
                server.kill()
                server.wait()


if __name__ == "__main__":
    main()
