"""What a request is told in company, and what is left of those who hang up.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_company.py [--requests 10000]

First the same scoring request, `--equal` times, alone and beside 64 clients who score, re-rank, generate and
type: all answers must be the same bytes. Then many requests of which three in ten hang up after a random time:
afterwards nothing may be under way, and memory, threads and open files are those of before. Figures are printed;
anything that is not so ends the run with an error. Nothing is written outside a temporary folder.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from bench_latency import GRAMOPHONE, QUIET, lists_of, texts_of, train
from http_client import Connection, free_port, wait_until_ready

_EQUAL = 20
"""Connections over which the equal requests come."""


def mixed(texts, generator):
    """Requests of every kind, for ever."""
    lists = lists_of(texts)
    while True:
        text = " ".join(generator.choice(texts))
        yield "/v1/score", {"texts": [text, text[:20]], "model": "mixture", "detail": "token"}
        yield "/v1/next-token", {"context": text[:40], "model": "mixture"}
        yield "/v1/generate", {"prompt": text[:30], "max_tokens": 30, "model": "mixture", "seed": 5}
        yield "/v1/generate", {"prompt": text[:30], "max_tokens": 30, "model": "mixture", "stream": True}
        yield "/v1/score", {"texts": [text], "model": "ngram"}
        few = json.loads(next(lists))["lists"][:1]
        yield "/v1/rerank", {"lists": few, "model": "mixture"}


async def answer(connection, path, body):
    """The whole reply, streamed or not."""
    if body.get("stream"):
        return [event async for event in connection.events(path, json.dumps(body).encode())]
    return await connection.ask(path, json.dumps(body).encode())


async def company(port, texts, count):
    """Equal requests beside 64 clients; how many different answers there are, the idle one included."""
    stop = False

    async def client(seed):
        connection = await Connection.open(port)
        for path, body in mixed(texts, random.Random(seed)):
            if stop:
                return
            await answer(connection, path, body)

    body = json.dumps(
        {"texts": [" ".join(t) for t in texts[:3]], "detail": "token", "model": "mixture"}
    ).encode()
    connection = await Connection.open(port)
    answers = {await connection.ask("/v1/score", body)}
    clients = [asyncio.create_task(client(seed)) for seed in range(64)]

    async def equal():
        connection = await Connection.open(port)
        for _ in range(count // _EQUAL):
            answers.add(await connection.ask("/v1/score", body))

    began = time.perf_counter()
    await asyncio.gather(*(equal() for _ in range(_EQUAL)))
    seconds = time.perf_counter() - began
    stop = True
    await asyncio.gather(*clients)
    print(f"{count} equal requests beside 64 clients: {len(answers)} answer(s), {seconds:.0f} s", flush=True)
    assert len(answers) == 1


async def hang_ups(port, texts, count):
    """Requests of which three in ten end when the client hangs up."""
    generator = random.Random(0)
    requests = mixed(texts, generator)
    gone = 0

    async def client():
        nonlocal count, gone
        while count > 0:
            count -= 1
            path, body = next(requests)
            connection = await Connection.open(port)
            if generator.random() < 0.3:
                gone += 1
                task = asyncio.create_task(answer(connection, path, body))
                await asyncio.sleep(generator.expovariate(100))
                connection.close()
                await asyncio.gather(task, return_exceptions=True)
            else:
                await answer(connection, path, body)
                connection.close()

    await asyncio.gather(*(client() for _ in range(16)))
    return gone


def state_of(port, pid):
    """Requests under way, resident MiB, threads and open files of the service."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        lines = dict(line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if line[0] != "#")
    under_way = sum(float(lines[f"gramophone_num_requests_{what}"]) for what in ("waiting", "running"))
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    resident = int(fields["VmRSS"].split()[0]) / 1024
    return under_way, resident, int(fields["Threads"]), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--equal", type=int, default=1000)
    parser.add_argument("--registry", type=Path, default=None)
    given = parser.parse_args()
    root = os.environ.get("GRAMOPHONE_DATA")  # noqa: TID251 - a benchmark, not the service
    data = None if root is None else Path(root)
    texts = texts_of(data)
    with tempfile.TemporaryDirectory() as folder:
        registry = given.registry or Path(folder)
        registry.mkdir(parents=True, exist_ok=True)
        train(registry, data)
        port = free_port()
        server = subprocess.Popen(
            [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(port)], **QUIET
        )
        try:
            wait_until_ready(port)
            asyncio.run(company(port, texts, given.equal))
            asyncio.run(hang_ups(port, texts, 500))
            time.sleep(1)
            before = state_of(port, server.pid)
            gone = asyncio.run(hang_ups(port, texts, given.requests))
            time.sleep(1)
            after = state_of(port, server.pid)
            print(f"{given.requests} requests, {gone} of them hung up on")
            for name, one, other in zip(("under way", "MiB", "threads", "files"), before, after, strict=True):
                print(f"  {name:10} before {one:8.0f}   after {other:8.0f}")
            if after[0] or after[1] > 1.1 * before[1] + 16 or after[3] > before[3] + 2:
                sys.exit("something was left behind")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
