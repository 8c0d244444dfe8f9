"""Two workers beside one: requests per CPU second, memory of the second, cost of a relay, and spread of clients.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_workers.py [--seconds 2] [--registry FOLDER]

Each worker is pinned to a core, and its work is divided by its CPU time, so the load generator and other processes
on the machine do not count. The n-gram model is of order 5 over a million words of novels (without the public data:
of Python's own documentation), the mixture that of `gramophone quickstart`. Memory is a process's private memory, and
its proportional share of everything mapped (Pss), as the kernel reports them. Nothing is written outside a temporary
folder unless --registry names one, whose models are reused.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from preparation import (
    GRAMOPHONE,
    QUIET,
    data_folder,
    free_port,
    quickstart,
    registry_at,
    train,
    wait_until_ready,
)

from service.bench.connection import Connection
from service.bench.driver import run_load
from service.bench.plan import ClosedLoop, LoadSettings, Request, Target
from service.bench.results import summarise_load
from service.workers.peers import affine_worker

WORDS = (
    "it",
    "was",
    "the",
    "best",
    "of",
    "times",
    "and",
    "the",
    "worst",
    "of",
    "times",
    "in",
    "the",
    "old",
    "house",
)
ROUNDS = 12
NOVELS = "novels"
NAMES = [f"client-{number}" for number in range(50)]
BLOCKS, BLOCK = 20, 100


def prepare(registry, data):
    """Train the missing models."""
    quickstart(registry)
    corpus = [] if data is None else [f"--corpus={data / 'novels-1m' / 'train.txt.xz'}"]
    train(registry, "ngram", NOVELS, *corpus, "--set", "tokenizer.kind=word", "--set", "ngram.order=5")


class Service:
    """Running service: its port and its worker processes."""

    def __init__(self, registry, models, workers):
        self.port = free_port()
        self.target = Target.parse(f"http://127.0.0.1:{self.port}")
        self._folder = tempfile.TemporaryDirectory()
        environment = {**os.environ, "GRAMOPHONE_PIN_WORKERS": "true", "TMPDIR": self._folder.name}  # noqa: TID251
        command = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*command, "--workers", str(workers)], env={**environment, "GRAMOPHONE_MODELS": models}, **QUIET
        )
        wait_until_ready(self.port)
        own = self._process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        self.pids = [int(pid) for pid in children] if workers > 1 else [own]
        if workers == 1:
            os.sched_setaffinity(own, {min(os.sched_getaffinity(0))})

    def close(self):
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


@contextlib.contextmanager
def running(registry, models, workers):
    """Run a service during the block."""
    service = Service(registry, models, workers)
    try:
        yield service
    finally:
        service.close()


def cpu_s(pid):
    """Return the CPU seconds that the threads of a process have used."""
    return (
        sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    )


def memory_mb(pid):
    """Return a process's private memory and its proportional share of mapped memory (Pss), in MB."""
    kb = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        kb[name.rstrip(":")] = int(value)
    return (kb["Private_Clean"] + kb["Private_Dirty"]) / 1024, kb["Pss"] / 1024


def answered(port, path="/v1/score"):
    """Return the number of requests for a path that each worker has answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    counts = {}
    for line in lines:
        if line.startswith("gramophone_http_requests_total{") and f'handler="{path}"' in line:
            worker = line.partition('worker="')[2].partition('"')[0] or "0"
            counts[int(worker)] = counts.get(int(worker), 0) + float(line.rsplit(" ", 1)[1])
    return counts


def warm_up(service, model):
    """Return the requests to send, after each worker has answered some."""
    bodies = [
        Request("/v1/score", json.dumps({"texts": [" ".join(WORDS[: 3 + i % 14])], "model": model}).encode())
        for i in range(4000)
    ]
    run_load(service.target, bodies, ClosedLoop(16), LoadSettings(num_requests=400))
    return bodies


def per_cpu_second(service, bodies, seconds):
    """Return the requests per CPU second of each worker under sixteen clients that score one sentence at a time."""
    before, taken = answered(service.port), [cpu_s(pid) for pid in service.pids]
    summary = summarise_load(
        run_load(service.target, bodies, ClosedLoop(16), LoadSettings(duration_s=seconds))
    )
    assert not summary.errors, summary.errors
    taken = [cpu_s(pid) - then_s for pid, then_s in zip(service.pids, taken, strict=True)]
    after = answered(service.port)
    return [(after[n] - before[n]) / one_s for n, one_s in enumerate(taken)], summary.achieved_per_s


@contextlib.contextmanager
def busy(core):
    """Keep a core busy with another process during the block."""
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", spin])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def compare(title, registry, model, seconds):
    """Compare one worker, one worker beside a busy core, and two, in short alternating windows; print memory.

    A host's cores change their speed by a third within seconds as other guests come and go, so the three are measured
    in adjacent windows and ratios are taken within a round.
    """
    cores = sorted(os.sched_getaffinity(0))
    lone, beside, each, totals = [], [], ([], []), []
    with running(registry, model, 1) as one, running(registry, model, 2) as two:
        bodies = warm_up(one, model)
        warm_up(two, model)
        for _ in range(ROUNDS):
            [rate], _ = per_cpu_second(one, bodies, seconds)
            lone.append(rate)
            rates, total = per_cpu_second(two, bodies, seconds)
            totals.append(total)
            for ratios, one_rate in zip(each, rates, strict=True):
                ratios.append(one_rate / rate)
            with busy(cores[-1]):
                [rate], _ = per_cpu_second(one, bodies, seconds)
            beside.append(rate / lone[-1])
        memory = [memory_mb(pid) for pid in two.pids]
    told = ", ".join(f"worker {n} {statistics.median(ratios):.2f}" for n, ratios in enumerate(each))
    print(
        f"{title}: requests a CPU second: alone {statistics.median(lone):,.0f} ({min(lone):,.0f} to {max(lone):,.0f}); "
        f"over that, of two {told}; alone beside a busy core {statistics.median(beside):.2f}; "
        f"together {statistics.median(totals):,.0f}/s by the clock"
    )
    for number, (private, pss) in enumerate(memory):
        print(f"{title}: memory of worker {number}: private {private:,.0f} MB, Pss {pss:,.0f} MB", flush=True)


def relay_costs(registry):
    """Print the additional CPU and wall time of a request that the other worker accepted."""
    with running(registry, NOVELS, 2) as service:
        workers = ["first", "second"]
        homes = {name: affine_worker(_scope(name), b"", workers) for name in NAMES}
        names = [next(name for name in NAMES if homes[name] == number) for number in (0, 1)]
        # one connection to either worker: one client's states are local there, the other's are relayed
        found = asyncio.run(_both(service, names))
    (near_s, near_cpu_s), (far_s, far_cpu_s) = sorted(found)
    print(
        f"a word after a state: {1e6 * near_s:.0f} µs at home, {1e6 * far_s:.0f} µs by the other worker: a relay takes "
        f"{1e6 * (far_s - near_s):.0f} µs, and {1e6 * (far_cpu_s - near_cpu_s):.0f} µs of CPU time of both beside "
        f"{1e6 * near_cpu_s:.0f}",
        flush=True,
    )


async def _both(service, names):
    """Return each client's median request time and CPU time of all workers, over blocks of requests."""
    target = Target.parse(f"http://127.0.0.1:{service.port}")
    connection = await Connection.open(target)
    requests = []
    for name in names:
        opened = await connection.exchange(_post("/v1/states", {"context": "it was the"}, name))
        state = json.loads(opened.body)["states"][0]["state"]
        asked = {"continuations": [{"state": state, "text": "best", "keep": False}]}
        requests.append(_post("/v1/states/advance", asked, name))
    found = [([], []) for _ in names]
    for _ in range(BLOCKS):
        for data, (times_s, cpus_s) in zip(requests, found, strict=True):
            taken_s = sum(map(cpu_s, service.pids))
            for _ in range(BLOCK):
                begun_s = time.perf_counter()
                await connection.exchange(data)
                times_s.append(time.perf_counter() - begun_s)
            cpus_s.append((sum(map(cpu_s, service.pids)) - taken_s) / BLOCK)
    connection.close()
    return [(statistics.median(times_s), statistics.median(cpus_s)) for times_s, cpus_s in found]


def _post(path, body, name):
    """Return the bytes of a request with the client's name."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-gramophone-session: {name}\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def _scope(name):
    return {"path": "/v1/states", "headers": [(b"x-gramophone-session", name.encode())]}


def spread(registry):
    """Print how evenly bursts of connections spread over two workers: the largest share over the fair one."""
    with running(registry, NOVELS, 2) as service:
        for clients in (8, 16, 64):
            shares = [asyncio.run(_burst(service.port, clients)) for _ in range(20)]
            print(
                f"{clients:2} connections at once: the larger share is {statistics.mean(shares):.2f} times the fair "
                f"one, {max(shares):.2f} at worst",
                flush=True,
            )


async def _burst(port, clients):
    """Return the larger share of connections over the fair one; each connection sends one request and stays open."""
    target, before = Target.parse(f"http://127.0.0.1:{port}"), answered(port, "/health/live")
    connections = await asyncio.gather(*(Connection.open(target) for _ in range(clients)))
    ask = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    await asyncio.gather(*(connection.exchange(ask) for connection in connections))
    after = answered(port, "/health/live")
    for connection in connections:
        connection.close()
    return max(after[n] - before.get(n, 0) for n in after) / (clients / 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--registry", type=Path, default=None)
    parser.add_argument("--only", choices=["ngram", "mixture", "relay", "spread"], default=None)
    given = parser.parse_args()
    with registry_at(given.registry) as registry:
        prepare(registry, data_folder())
        parts = {
            "ngram": lambda: compare("n-gram", registry, NOVELS, given.seconds),
            "mixture": lambda: compare("mixture", registry, "mixture", given.seconds),
            "relay": lambda: relay_costs(registry),
            "spread": lambda: spread(registry),
        }
        for part in [given.only] if given.only else parts:
            parts[part]()


if __name__ == "__main__":
    main()
