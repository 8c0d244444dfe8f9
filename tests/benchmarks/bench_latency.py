"""Keystrokes at a steady rate, alone and while re-ranking takes all that is left of the machine.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_latency.py [--seconds 20] [--ngram-rate 300] [--typing-rate 20]

Open loop: requests leave at the times of a Poisson process whatever became of those before, and a request's time
counts from when it should have left. The n-gram model is of order 5 over the novels; people type into a mixture
of an n-gram model and an LSTM, a word more with each request. The bulk is n-best lists of 100 candidates, four
requests at a time. Without the public data the models are of Python's own documentation. Nothing is written
outside a temporary folder unless --registry names one, whose models are used again.
"""

import argparse
import asyncio
import json
import lzma
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_service import NO_OP
from http_client import Connection, free_port, wait_until_ready

GRAMOPHONE = (sys.executable, "-m", "service.cli")
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
SAYING = ["it", "was", "the", "best", "of", "times", "and", "it", "was", "the", "worst", "of", "times", "too"]


def train(registry, data):
    """An n-gram model and a mixture, if they are not there yet."""
    corpora = {"ngram": [], "mixture": []}
    if data is not None:
        corpora["ngram"] = [f"--corpus={path}" for path in sorted((data / "novels").glob("*.train.txt.xz"))]
        small = data / "novels-1m"
        corpora["mixture"] = [f"--corpus={small / 'train.txt.xz'}", f"--valid={small / 'valid.txt.xz'}"]
    for recipe, corpus in corpora.items():
        if (registry / recipe).exists():
            continue
        settings = ["--set", "tokenizer.kind=word"]
        settings += ["--set", "train.max_steps=30"] if recipe == "mixture" else ["--set", "ngram.order=5"]
        command = [*GRAMOPHONE, "train", recipe, "--name", recipe, "--registry", str(registry)]
        subprocess.run([*command, *corpus, *settings], check=True, **QUIET)


def texts_of(data):
    """Sentences that people may be typing."""
    if data is None:
        return [SAYING]
    with lzma.open(data / "novels-1m" / "test.txt.xz", "rt", encoding="utf-8") as lines:
        return [words for line, _ in zip(lines, range(2000), strict=False) if len(words := line.split()) > 8]


def typed(texts, count):
    """Bodies of requests, each a word longer than the one before."""
    bodies = []
    for words in texts:
        for end in range(1, len(words)):
            request = {"context": " ".join(words[:end]) + " ", "top_k": 10, "entropy": False}
            bodies.append(request)
        if len(bodies) >= count:
            break
    return bodies[:count]


async def open_loop(port, bodies, rate):
    """Seconds from when each request should have left to its answer."""
    idle, seconds, generator = [await Connection.open(port) for _ in range(16)], [], random.Random(0)
    began = due = time.perf_counter() + 0.05

    async def one(body, due):
        connection = idle.pop() if idle else await Connection.open(port)
        await connection.ask("/v1/next-token", body)
        seconds.append(time.perf_counter() - due)
        idle.append(connection)

    async with asyncio.TaskGroup() as tasks:
        for body in bodies:
            await asyncio.sleep(max(due - time.perf_counter() - TIMER_S, 0))
            while time.perf_counter() < due:  # noqa: ASYNC110 - for the clock
                await asyncio.sleep(0)
            tasks.create_task(one(body, due))
            due += generator.expovariate(rate)
    return seconds, len(bodies) / (time.perf_counter() - began)


def lists_of(texts):
    """Bodies of re-ranking requests: 100 variants of a sentence, alike as those of a decoder are."""
    generator = random.Random(1)
    words = [word for text in texts[:50] for word in text]
    while True:
        lists = []
        for _ in range(10):
            text = generator.choice(texts)[:25]
            variants = []
            for _ in range(100):
                variant = list(text)
                for _ in range(2):
                    variant[generator.randrange(len(variant))] = generator.choice(words)
                variants.append({"text": " ".join(variant)})
            lists.append({"candidates": variants})
        yield json.dumps({"lists": lists, "model": "mixture"}).encode()


async def bulk(port, texts, seconds):
    """Closed loop of four re-ranking requests; candidates a second."""
    bodies, until, done = lists_of(texts), time.perf_counter() + seconds, 0

    async def client():
        nonlocal done
        connection = await Connection.open(port)
        while time.perf_counter() < until:
            await connection.ask("/v1/rerank", next(bodies))
            done += 1000

    await asyncio.gather(*(client() for _ in range(4)))
    print(done / seconds)


def measure(title, port, bodies, rate):
    """Print the percentiles of one open loop."""
    seconds, achieved = asyncio.run(open_loop(port, bodies, rate))
    cut = statistics.quantiles(seconds, n=1000)
    times = "   ".join(f"{name} {1e3 * cut[place]:6.2f} ms" for name, place in PERCENTILES.items())
    print(f"{title:44} {times}   at {achieved:5.0f}/s", flush=True)


TIMER_S = 0.002  # an event loop's timers are this coarse, or nearly
PERCENTILES = {"p50": 499, "p90": 899, "p99": 989, "p99.9": 998}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--ngram-rate", type=float, default=300)
    parser.add_argument("--typing-rate", type=float, default=20)
    parser.add_argument("--registry", type=Path, default=None)
    parser.add_argument("--bulk", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    root = os.environ.get("GRAMOPHONE_DATA")  # noqa: TID251 - a benchmark, not the service
    data = None if root is None else Path(root)
    texts = texts_of(data)
    if given.bulk:
        asyncio.run(bulk(given.bulk, texts, given.seconds))
        return
    with tempfile.TemporaryDirectory() as folder:
        registry = given.registry or Path(folder)
        registry.mkdir(parents=True, exist_ok=True)
        train(registry, data)
        ports = free_port(), free_port()
        command = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(ports[1])]
        nothing = subprocess.Popen([sys.executable, "-c", NO_OP, str(ports[0])], **QUIET)
        server = subprocess.Popen(command, **QUIET)
        try:
            for port in ports:
                wait_until_ready(port)
            bodies = [b"{}"] * int(given.ngram_rate * given.seconds)
            measure("a route that does nothing", ports[0], bodies, given.ngram_rate)
            run(ports[1], texts, given)
        finally:
            for process in (nothing, server):
                process.terminate()
                process.wait()


def run(port, texts, given):
    """The three figures."""
    quick = [json.dumps({**body, "model": "ngram"}).encode() for body in typed(texts, 30_000)]
    slow = [json.dumps({**body, "model": "mixture"}).encode() for body in typed(texts, 30_000)]
    asyncio.run(open_loop(port, quick[:300], 300))
    asyncio.run(open_loop(port, slow[:100], 50))
    measure("n-gram", port, quick[: int(given.ngram_rate * given.seconds)], given.ngram_rate)
    some = slow[100 : 100 + int(given.typing_rate * given.seconds)]
    measure("mixture, a word more each time", port, some, given.typing_rate)
    rival = subprocess.Popen(
        [sys.executable, __file__, "--bulk", str(port), "--seconds", str(2 * given.seconds + 4)],
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(3)
    some = slow[10_000 : 10_000 + int(given.typing_rate * given.seconds)]
    measure("the same beside re-ranking", port, some, given.typing_rate)
    measure(
        "n-gram beside re-ranking", port, quick[: int(given.ngram_rate * given.seconds)], given.ngram_rate
    )
    print(f"re-ranking meanwhile: {float(rival.communicate()[0]):,.0f} candidates/s", flush=True)


if __name__ == "__main__":
    main()
