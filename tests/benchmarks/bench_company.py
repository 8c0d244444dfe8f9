"""Replies under concurrent load, and resources left behind by clients that disconnect.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_company.py [--requests 10000]

First the same scoring request runs `--equal` times, alone and beside 64 clients that score, re-rank, generate and
type: all replies must have the same bytes. Then three in ten of many requests are abandoned after a random time:
afterwards no request may be under way, and memory, threads and open files must be back at their earlier values.
The benchmark prints the figures and exits with an error if a check fails. It writes only to a temporary folder.
"""

import argparse
import asyncio
import itertools
import json
import random
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from preparation import (
    GRAMOPHONE,
    QUIET,
    data_folder,
    free_port,
    ngram_and_mixture,
    registry_at,
    typed_texts,
    wait_until_ready,
)

from service.bench.connection import Connection
from service.bench.plan import Request, Target
from service.bench.workloads import workload_requests

_EQUAL = 20
"""Number of connections that send the equal requests."""


def mixed(texts, generator):
    """Yield requests of every kind, endlessly."""
    lists = workload_requests(
        "rerank", texts=texts, model="mixture", seed=generator.randrange(1000), count=50
    )
    for rerank in itertools.cycle(lists):
        text = generator.choice(texts)
        yield request("score", texts=[text, text[:20]], detail="token")
        yield request("next-token", context=text[:40])
        yield request("generate", prompt=text[:30], max_tokens=30, seed=5)
        yield request("generate", prompt=text[:30], max_tokens=30, stream=True)
        yield request("score", texts=[text], model="ngram")
        yield rerank


def request(endpoint, **body):
    """Return a request to the mixture, unless another model is named."""
    return Request(f"/v1/{endpoint}", json.dumps({"model": "mixture", **body}).encode())


async def answer(connection, asked):
    """Return the body of a reply, which must succeed."""
    reply = await connection.send(asked)
    assert (reply.status, reply.error) == (200, None), reply.body
    return reply.body


async def company(target, texts, count):
    """Send equal requests beside 64 clients; all replies, the idle one included, must be equal."""
    stop = False

    async def client(seed):
        connection = await Connection.open(target)
        for asked in mixed(texts, random.Random(seed)):
            if stop:
                return
            await answer(connection, asked)

    same = request("score", texts=texts[:3], detail="token")
    answers = {await answer(await Connection.open(target), same)}
    clients = [asyncio.create_task(client(seed)) for seed in range(64)]

    async def equal():
        connection = await Connection.open(target)
        for _ in range(count // _EQUAL):
            answers.add(await answer(connection, same))

    began = time.perf_counter()
    await asyncio.gather(*(equal() for _ in range(_EQUAL)))
    seconds = time.perf_counter() - began
    stop = True
    await asyncio.gather(*clients)
    print(f"{count} equal requests beside 64 clients: {len(answers)} answer(s), {seconds:.0f} s", flush=True)
    assert len(answers) == 1


async def hang_ups(target, texts, count):
    """Send requests; the client abandons three in ten."""
    generator = random.Random(0)
    requests = mixed(texts, generator)
    gone = 0

    async def client():
        nonlocal count, gone
        while count > 0:
            count -= 1
            asked = next(requests)
            connection = await Connection.open(target)
            if generator.random() < 0.3:
                gone += 1
                task = asyncio.create_task(answer(connection, asked))
                await asyncio.sleep(generator.expovariate(100))
                connection.close()
                await asyncio.gather(task, return_exceptions=True)
            else:
                await answer(connection, asked)
                connection.close()

    await asyncio.gather(*(client() for _ in range(16)))
    return gone


def state_of(port, pid):
    """Return the service's requests under way, resident MiB, threads and open files."""
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
    data = data_folder()
    texts = typed_texts(data)
    with registry_at(given.registry) as registry:
        ngram_and_mixture(registry, data)
        port = free_port()
        server = subprocess.Popen(
            [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(port)], **QUIET
        )
        try:
            wait_until_ready(port)
            target = Target.parse(f"http://127.0.0.1:{port}")
            asyncio.run(company(target, texts, given.equal))
            asyncio.run(hang_ups(target, texts, 500))
            time.sleep(1)
            before = state_of(port, server.pid)
            gone = asyncio.run(hang_ups(target, texts, given.requests))
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
