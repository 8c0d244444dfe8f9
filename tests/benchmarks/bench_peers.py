"""The service beside LitServe with batching and plain FastAPI handlers: the same LSTM, requests and replies.

    python tests/benchmarks/bench_peers.py [--seconds 2] [--rounds 3] [--clients 1 32] [--tune 3] [--workers 2]

The model is random (2 x 512, tied, V = 16k). Each peer computes it by torch and by ONNX Runtime, in float32 and in
their dynamic int8; compare rows of the same precision. Closed loops measure the peak; open loops (Poisson) then run at
half of the peak of the best peer of a precision. Servers and clients share the machine. One server is loaded at a time
and the others are stopped (SIGSTOP), because LitServe polls when idle; servers take turns within every round, so other
load on the machine affects all equally. Read the ratios.

LitServe and ONNX Runtime are installed on first use, into a folder inside this environment, and omitted if that fails.
`--tune` tries the sensible settings of each peer at each number of clients, for some seconds each, and continues with
the fastest; without it the settings are the usual ones. Nothing else is written outside a temporary folder.
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
from typing import NamedTuple

import numpy as np
import torch
from peers.settings import choices
from peers.setup import (
    GENERATE,
    GRAMOPHONE,
    NEW_TOKENS,
    OURS,
    SCORE,
    VOCAB_SIZE,
    available_peers,
    peer_command,
    running,
)
from safetensors.torch import load_file

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import Vocabulary
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.tokenizers import WordTokenizer
from service.bench.connection import Connection
from service.bench.driver import run_load
from service.bench.plan import ClosedLoop, LoadSettings, OpenLoop
from service.bench.results import summarise_load

TOLERANCE = 1e-4
"""Maximum difference in nats between a peer's score of a text and ours, in float32."""
NONSENSE = 0.1
"""Mean difference in nats per token from float32 above which an int8 model does not compute the network."""
SAME_DRAWS = 0.9
"""Minimum share of equal tokens that float32 peers draw with equal seeds; rounding may change a draw."""
CHECKED_TEXTS = 4
TUNING_ROUNDS = 2
WARMUP_S = 0.5
REQUESTS_PER_S = 3000
"""More than any server answers: no request is repeated, so our caches give no advantage."""
FEWEST = 120
"""Mean number of requests of an open loop for a 99th percentile; below 100 requests the maximum replaces it."""


def publish(root):
    """Publish a random LSTM as `m`; its scores vary by half a nat, so that a wrong computation is noticed."""
    torch.manual_seed(0)
    network = Network(NetworkConfig(cell="lstm", layers=2, embedding_size=512, hidden_size=512), VOCAB_SIZE)
    network.embedding.weight.data *= 10
    vocabulary = Vocabulary([f"w{i}" for i in range(VOCAB_SIZE - 3)])
    model = NeuralModel(network, vocabulary)
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
    version = LocalRegistry(root, create=True).publish(
        "m", lambda folder: write_checkpoint(folder, model, WordTokenizer(vocabulary), about)
    )
    return version.path


def load(server, workload, loop, seconds, random):
    """Load one server for some seconds while the others are stopped; return the summary."""
    requests = workload.requests(server.contestant, int(REQUESTS_PER_S * (seconds + WARMUP_S)), random)
    with server.turn() as target:
        recording = run_load(target, requests, loop, LoadSettings(duration_s=seconds, warmup_s=WARMUP_S))
    summary = summarise_load(recording)
    if summary.errors or not summary.valid:
        print(f"  {server.contestant}, {loop}: {summary.errors or summary.invalid_because}", flush=True)
    return summary


def check_same_work(servers, workload):
    """Send all servers the same requests, compare the replies, and print the differences from our float32."""
    texts = np.random.default_rng(1).integers(3, VOCAB_SIZE, (CHECKED_TEXTS, workload.num_ids)).tolist()
    texts = [ids[:length] for ids in texts for length in range(1, workload.num_ids + 1)]
    answers = {}
    for contestant, server in servers.items():
        requests = workload.requests_for(contestant, texts)
        with server.turn() as target:
            bodies = asyncio.run(replies(target, requests))
        answers[contestant] = [workload.answer(contestant, body) for body in bodies]
    if workload is GENERATE:
        assert all(len(ids) == NEW_TOKENS for rows in answers.values() for ids in rows)
        exact, *others = (rows for one, rows in answers.items() if one.is_peer and one.precision == "float32")
        assert all(np.equal(exact, rows).mean() > SAME_DRAWS for rows in others), (
            "peers draw different tokens"
        )
        return
    sums = {one: np.reshape(answer, (CHECKED_TEXTS, -1)) for one, answer in answers.items()}
    tokens = {one: np.diff(rows, prepend=0) for one, rows in sums.items()}
    exact = OURS["float32"]
    print(
        f"\nfrom our float32, over {tokens[exact].size} tokens: mean difference in nats, change of the perplexity"
    )
    for one, scores in tokens.items():
        away, perplexity = np.abs(scores - tokens[exact]).mean(), np.expm1((tokens[exact] - scores).mean())
        print(f"{one} {away:.1e}   {perplexity:+.4%}", flush=True)
        assert away <= NONSENSE, f"{one} computes another network"
        assert one.precision == "int8" or np.abs(sums[one] - sums[exact]).max() <= TOLERANCE, one


async def replies(target, requests):
    """Return the bodies of the replies to consecutive requests."""
    connection = await Connection.open(target)
    bodies = [(await connection.send(request)).body for request in requests]
    connection.close()
    return bodies


class Pace(NamedTuple):
    """Requests per second, and CPU time of the server per request in ms."""

    per_s: float
    cpu_ms: float


def closed_loops(servers, workload, clients, seconds, rounds, random):
    """Return the median pace of each server."""
    paces = {key: [] for key in servers}
    for _, (key, server) in itertools.product(range(rounds), servers.items()):
        loop, before_s = ClosedLoop(clients=clients), server.cpu_s()
        summary = load(server, workload, loop, seconds * workload.stretch, random)
        num_requests = summary.achieved_per_s * (seconds * workload.stretch + WARMUP_S)
        paces[key].append(Pace(summary.achieved_per_s, 1e3 * (server.cpu_s() - before_s) / num_requests))
    return {key: Pace(*map(statistics.median, zip(*row, strict=True))) for key, row in paces.items()}


def show_paces(workload, paces, clients):
    """Print the pace by number of clients, and who is faster at each precision."""
    print(
        f"\n{workload.title}, closed loop: requests/s (x ours at the same precision), CPU ms per request of the server"
    )
    print(f"{'':31}" + "".join(f"{f'{n} clients':>28}" for n in clients))
    for one, row in paces.items():
        shares = (row[n].per_s / paces[one.ours][n].per_s for n in clients)
        cells = (
            f"{row[n].per_s:.1f} ({share:4.2f}) {row[n].cpu_ms:7.2f} ms"
            for n, share in zip(clients, shares, strict=True)
        )
        print(f"{one}" + "".join(f"{cell:>28}" for cell in cells))
    for (precision, ours), n in itertools.product(OURS.items(), clients):
        rates = {one: row[n].per_s for one, row in paces.items()}
        best = best_peer(rates, precision)
        verdict = (
            "is fastest" if rates[ours] > rates[best] else f"loses to {best.framework} with {best.runtime}"
        )
        print(
            f"{workload.name}, {precision}, {n} clients: {GRAMOPHONE} {verdict}: {rates[ours]:.1f}/s,"
            f" {rates[ours] / rates[best]:.2f} x the best peer's {rates[best]:.1f}/s",
            flush=True,
        )


def best_peer(rates, precision):
    """Return the peer of a precision with the highest rate."""
    return max((one for one in rates if one.is_peer and one.precision == precision), key=rates.get)


def half_load(servers, workload, precision, rates, given, random):
    """Print p50 and p99 of open loops at half of the best peer's rate, counted from when a request was due."""
    rate = rates[best_peer(rates, precision)] / 2
    seconds = max(given.open_seconds, FEWEST / rate)
    able = [one for one in servers if one.precision == precision and rates[one] > rate]
    times = {one: [] for one in able}
    for seed, one in itertools.product(range(given.rounds), able):
        loop = OpenLoop(rate_per_s=rate, arrivals="poisson", seed=seed)
        latency = load(servers[one], workload, loop, seconds, random).latency_ms
        times[one].append((latency.p50, latency.highest))
    print(f"\n{workload.title}, {precision}: open loop, {rate:.1f} requests/s, half of the best peer's peak")
    for one in servers:
        if one in times:
            p50, p99 = (statistics.median(column) for column in zip(*times[one], strict=True))
            print(f"{one} p50 {p50:8.2f} ms   p99 {p99:8.2f} ms", flush=True)
        elif one.precision == precision:
            print(f"{one} cannot keep up", flush=True)


def tuned(peer, command, workload, clients, seconds, folder, random):
    """Return the fastest options of a peer at a number of clients, chosen one after the other."""
    best = [options[0] for options in choices(peer.framework, clients)]
    for place, options in enumerate(choices(peer.framework, clients)):
        if len(options) == 1:
            continue
        variants = [(*best[:place], option, *best[place + 1 :]) for option in options]
        commands = {variant: (peer, command(*itertools.chain(*variant))) for variant in variants}
        with running(commands, folder) as servers:
            paces = closed_loops(servers, workload, clients, seconds, TUNING_ROUNDS, random)
        best = max(paces, key=paces.get)
        found = (
            f"{' '.join(variant[place]) or 'no option'} {pace.per_s:.1f}/s" for variant, pace in paces.items()
        )
        print(f"{workload.name}, {clients} clients: {peer} {'   '.join(found)}", flush=True)
    return list(itertools.chain(*best))


def compare(workload, registry, models, peers, given):
    """Run all comparisons for one kind of request."""
    random, paces = np.random.default_rng(0), {}
    ours = [sys.executable, "-m", "service.cli", "serve", "--registry", str(registry)]
    ours += ["--workers", str(given.workers), "--precision"]
    for clients in given.clients:
        commands = {one: (one, [*ours, precision]) for precision, one in OURS.items()}
        for peer in peers:
            command = partial(peer_command, peer, models, workload.name)
            options = itertools.chain(*(options[0] for options in choices(peer.framework, clients)))
            if given.tune:
                options = tuned(peer, command, workload, clients, given.tune, registry.parent, random)
            commands[peer] = peer, command(*options)
        with running(commands, registry.parent) as servers:
            check_same_work(servers, workload)
            now = closed_loops(servers, workload, clients, given.seconds, given.rounds, random)
            for one, pace in now.items():
                paces.setdefault(one, {})[clients] = pace
            if clients == given.clients[-1]:
                show_paces(workload, paces, given.clients)
                for precision in OURS:
                    rates = {one: pace.per_s for one, pace in now.items()}
                    half_load(servers, workload, precision, rates, given, random)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=2, help="time of a closed loop; twice that for generation"
    )
    parser.add_argument("--open-seconds", type=float, default=8, help="minimum time of an open loop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--only", choices=["score", "generate"])
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="number of our processes; one per core by default"
    )
    parser.add_argument("--tune", type=float, default=0, metavar="SECONDS", help="time per setting of a peer")
    given = parser.parse_args()
    # servers have process groups of their own and would outlive a benchmark that is terminated
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    peers = available_peers()
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder) / "registry"
        models = {"torch": publish(registry), "onnxruntime": Path(folder) / "onnx"}
        if any(peer.runtime == "onnxruntime" for peer in peers):
            from peers.onnx_export import write_models

            write_models(load_file(models["torch"] / "model.safetensors"), models["onnxruntime"])
        for workload in (SCORE, GENERATE):
            if given.only in {None, workload.name}:
                compare(workload, registry, models, peers, given)


if __name__ == "__main__":
    main()
