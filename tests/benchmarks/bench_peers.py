"""The service beside LitServe with batching and a plain FastAPI handler: the same LSTM, requests and replies.

    python tests/benchmarks/bench_peers.py [--seconds 2] [--rounds 3] [--clients 1 4 16 32 64] [--tune 3] [--workers 2]

The model is random (2 x 512, tied, V = 16k); the peers compute it in float32 with nn.LSTM, in batches where they
batch. Closed loops measure the peak; open loops (Poisson) then run at half of the better peer's peak. Servers and
clients share the machine. One server is loaded at a time and the others are stopped (SIGSTOP), because LitServe polls
when idle; servers take turns within every round, so other load on the machine affects all equally. Read the ratios.

LitServe is installed on first use, into a folder inside this environment, and omitted if that fails. `--tune` tries the
sensible settings of each peer, for some seconds each, and continues with the fastest. Nothing else is written outside
a temporary folder.
"""

import argparse
import asyncio
import itertools
import os
import signal
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from bench_engine import publish
from peers.setup import (
    BUSY,
    CHOSEN,
    FASTAPI,
    GENERATE,
    LITSERVE,
    NEW_TOKENS,
    OURS,
    PEERS,
    SCORE,
    VARIANTS,
    VOCAB_SIZE,
    fastapi_command,
    litserve_command,
    litserve_python,
    running,
)

from models.checkpoint.registry import LocalRegistry
from service.bench.connection import Connection
from service.bench.driver import run_load
from service.bench.plan import ClosedLoop, LoadSettings, OpenLoop
from service.bench.results import summarise_load

TOLERANCE = 1e-4
"""Maximum difference in nats between a peer's score and ours in float32."""
WARMUP_S = 0.5
REQUESTS_PER_S = 1500
"""More than any server answers: no request is repeated, so our caches give no advantage."""
FEWEST = 120
"""Mean number of requests of an open loop for a 99th percentile; below 100 requests the maximum replaces it."""


def load(server, name, workload, loop, seconds, random):
    """Load one server for some seconds while the others are stopped; return the summary."""
    requests = workload.requests(name, int(REQUESTS_PER_S * (seconds + WARMUP_S)), random)
    with server.turn() as target:
        recording = run_load(target, requests, loop, LoadSettings(duration_s=seconds, warmup_s=WARMUP_S))
    summary = summarise_load(recording)
    if summary.errors or not summary.valid:
        print(f"  {name}, {loop}: {summary.errors or summary.invalid_because}", flush=True)
    return summary


def check_same_work(servers, workload):
    """Send all servers the same requests and compare the replies; print the differences from float32."""
    answers = {}
    for name, server in servers.items():
        requests = workload.requests(name, 16, np.random.default_rng(1))
        with server.turn() as target:
            answers[name] = [workload.answer(name, body) for body in asyncio.run(replies(target, requests))]
    if workload is GENERATE:
        assert all(len(ids) == NEW_TOKENS for rows in answers.values() for ids in rows)
        return
    reference = np.array(answers[OURS["float32"]])
    away = {name: np.abs(np.array(scores) - reference).max() for name, scores in answers.items()}
    assert all(away[name] <= TOLERANCE for name in away.keys() & PEERS), away
    print("largest difference of a score from ours in float32, in nats:")
    print("   ".join(f"{name} {nats:.1e}" for name, nats in away.items()), flush=True)


async def replies(target, requests):
    """Return the bodies of the replies to consecutive requests."""
    connection = await Connection.open(target)
    bodies = [(await connection.send(request)).body for request in requests]
    connection.close()
    return bodies


def peaks(servers, workload, given, random):
    """Print requests per second by number of clients; return each server's best median."""
    rates = {(name, clients): [] for name in servers for clients in given.clients}
    for _, clients, name in itertools.product(range(given.rounds), given.clients, servers):
        loop = ClosedLoop(clients=clients)
        summary = load(servers[name], name, workload, loop, given.seconds * workload.stretch, random)
        rates[name, clients].append(summary.achieved_per_s)
    medians = {name: [statistics.median(rates[name, n]) for n in given.clients] for name in servers}
    best = {name: max(row) for name, row in medians.items()}
    rival = max(best[name] for name in best.keys() & PEERS)
    print(f"\n{workload.title}: requests/s of a closed loop by number of clients")
    print(f"{'':20}" + "".join(f"{n:8}" for n in given.clients) + "    peak   x the better peer")
    for name, row in medians.items():
        shown = "".join(f"{rate:8.1f}" for rate in row)
        print(f"{name:20}{shown}{best[name]:8.1f}   {best[name] / rival:.2f}")
    for precision, bar in workload.bars.items():
        print(f"{precision}: {best[OURS[precision]] / rival:.2f} of the {bar} that are wanted", flush=True)
    return best


def half_load(servers, workload, best, given, random):
    """Print p50 and p99 of open loops at half of the better peer's peak, counted from when a request was due."""
    rate = max(best[name] for name in best.keys() & PEERS) / 2
    seconds = max(given.open_seconds, FEWEST / rate)
    able = [name for name in servers if best[name] > rate]
    times = {name: [] for name in able}
    for seed, name in itertools.product(range(given.rounds), able):
        loop = OpenLoop(rate_per_s=rate, arrivals="poisson", seed=seed)
        latency = load(servers[name], name, workload, loop, seconds, random).latency_ms
        times[name].append((latency.p50, latency.highest))
    print(f"\n{workload.title}: open loop, {rate:.1f} requests/s")
    for name, rounds in times.items():
        p50, p99 = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{name:20} p50 {p50:8.2f} ms   p99 {p99:8.2f} ms", flush=True)
    for name in servers.keys() - able:
        print(f"{name:20} cannot keep up", flush=True)


def tuned(peer, command, workload, seconds, folder, random):
    """Return the fastest options of a peer, chosen one after the other."""
    rates = {}
    best = tuple(choices[0] for choices in VARIANTS[peer])
    for place, choices in enumerate(VARIANTS[peer]):
        for choice in choices:
            tried = (*best[:place], choice, *best[place + 1 :])
            if tried not in rates:
                options = [option for part in tried for option in part]
                with running({peer: command(options)}, folder) as servers:
                    loop = ClosedLoop(clients=BUSY[peer])
                    summary = load(servers[peer], peer, workload, loop, seconds * workload.stretch, random)
                rates[tried] = summary.achieved_per_s
                print(f"{workload.name}: {peer} {' '.join(options):70} {rates[tried]:6.1f}/s", flush=True)
        best = max(rates, key=rates.get)
    return [option for part in best for option in part]


def compare(workload, registry, python, given):
    """Run all comparisons for one kind of request."""
    random = np.random.default_rng(0)
    version = LocalRegistry(registry).resolve("m").path
    commands = {FASTAPI: partial(fastapi_command, version)}
    if python is not None:
        commands = {LITSERVE: partial(litserve_command, python, version, workload.name), **commands}
    options = CHOSEN[workload.name]
    if given.tune:
        options = {
            peer: tuned(peer, command, workload, given.tune, registry.parent, random)
            for peer, command in commands.items()
        }
    ours = [sys.executable, "-m", "service.cli", "serve", "--registry", str(registry)]
    ours += ["--workers", str(given.workers), "--precision"]
    all_commands = {name: [*ours, precision] for precision, name in OURS.items()}
    all_commands |= {peer: command(options[peer]) for peer, command in commands.items()}
    with running(all_commands, registry.parent) as servers:
        check_same_work(servers, workload)
        best = peaks(servers, workload, given, random)
        half_load(servers, workload, best, given, random)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=2, help="time of a closed loop; twice that for generation"
    )
    parser.add_argument("--open-seconds", type=float, default=8, help="minimum time of an open loop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 32, 64])
    parser.add_argument("--only", choices=["score", "generate"])
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="number of our processes; one per core by default"
    )
    parser.add_argument("--tune", type=float, default=0, metavar="SECONDS", help="time per setting of a peer")
    given = parser.parse_args()
    # servers have process groups of their own and would outlive a benchmark that is terminated
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    python = litserve_python()
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder) / "registry"
        publish(registry, layers=2, hidden=512, vocab_size=VOCAB_SIZE)
        for workload in (SCORE, GENERATE):
            if given.only in {None, workload.name}:
                compare(workload, registry, python, given)


if __name__ == "__main__":
    main()
