"""Keystroke latency beside eight clients that send small but expensive requests.

    python tests/benchmarks/bench_heavy_company.py [--old CHECKOUT --pairs 10] [--seconds 4] [--model ngram …]
        [--company beams …] [--registry DIR] [--json FILE]

One client types lines letter by letter and calls /v1/autocomplete after each, 10 ms after the last reply. The eight
clients load the same model in a closed loop: beams of 64, 64 samples, the best of 64, 3,100 contexts in a body under
16 KiB, or minimum Bayes risk over lists of 300 candidates × 300 words. With `--old` a service of another checkout
runs too and both are measured in turn, so other load on the machine hardly changes the ratios. The benchmark prints
medians over the rounds with 95 % intervals (bootstrap over rounds). In an empty registry the quickstart's models are
trained first. Nothing is written outside it, or a temporary folder.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from preparation import GRAMOPHONE, QUIET, free_port, quickstart, registry_at, typed_texts, wait_until_ready

from service.bench.connection import Connection
from service.bench.driver import run_load
from service.bench.plan import ClosedLoop, LoadSettings, Request, Target
from service.bench.results import summarise_load
from service.bench.workloads import candidate_variants

ROOT = Path(__file__).parents[2]
_LETTERS = [chr(code) for code in range(33, 127) if chr(code) not in '"\\']
_NUM_CLIENTS = 8
_NUM_DIFFERENT = 64  # different bodies of a kind, sent in a cycle
_PAUSE_S = 0.01
_WARMUP_S = 1.0
_SETTLE_S = 0.5  # time to cancel the requests that are left
_WITHOUT = "nobody"


def generate(generator, prompt, **body):
    """Request a text much longer than the request."""
    body |= {"prompt": prompt, "max_tokens": 64, "ignore_eos": True, "seed": generator.randrange(1 << 32)}
    return body


def contexts(generator):
    """Return 3,100 contexts of two letters each, five bytes with quotes and comma."""
    return ["".join(generator.choices(_LETTERS, k=2)) for _ in range(3100)]


def lists(generator, texts):
    """Return 300 similar hypotheses of 300 words, ranked by their own scores: no model is called."""
    words = " ".join(generator.sample(texts, 60)).split()[:300]
    some = candidate_variants(" ".join(words), words, 300, generator)
    candidates = [{"text": text, "features": {"am": -generator.random()}} for text in some]
    return {"lists": [{"candidates": candidates}], "weights": {"am": 1.0}}


FIGURES = ("p50 ms", "p99 ms", "max ms", "company/s")
COMPANY = {
    "beams": lambda g, ts: ("generate", generate(g, g.choice(ts), strategy="beam", num_beams=64)),
    "samples": lambda g, ts: ("generate", generate(g, g.choice(ts), n=64)),
    "best-of": lambda g, ts: ("completions", generate(g, g.choice(ts), best_of=64)),
    "contexts": lambda g, _: ("next-token", {"context": contexts(g)}),
    "mbr-wer": lambda g, ts: ("rerank", {**lists(g, ts), "mbr": "wer"}),
    "mbr-chrf": lambda g, ts: ("rerank", {**lists(g, ts), "mbr": "chrf"}),
    "mbr-bleu": lambda g, ts: ("rerank", {**lists(g, ts), "mbr": "bleu"}),
}


def requests_of(kind, model, texts):
    """Return different requests of one kind."""
    generator = random.Random(kind)
    made = (COMPANY[kind](generator, texts) for _ in range(8 if kind.startswith("mbr") else _NUM_DIFFERENT))
    bodies = [
        (path, json.dumps({"model": model, **body}, separators=(",", ":")).encode()) for path, body in made
    ]
    return [Request(f"/v1/{path}", body) for path, body in bodies]


def keep_company(target, requests, to_parent):
    """Send requests until interrupted, in a process of its own; then send its rate and errors to the parent."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT in background processes
    summary = summarise_load(
        run_load(target, requests, ClosedLoop(_NUM_CLIENTS), LoadSettings(duration_s=3600))
    )
    errors = {kind: error.example for kind, error in summary.errors.items() if kind != "unfinished"}
    to_parent.send((summary.achieved_per_s, errors))


@contextlib.contextmanager
def company(target, requests):
    """Run the clients during the block, then append their rate to the list."""
    found = []
    if not requests:
        yield [0.0]
        return
    context = multiprocessing.get_context("fork")
    from_child, to_parent = context.Pipe(duplex=False)
    child = context.Process(target=keep_company, args=(target, requests, to_parent))
    child.start()
    to_parent.close()  # the child has a copy: if the child dies, recv does not block
    try:
        yield found
    finally:
        os.kill(child.pid, signal.SIGINT)
        rate, errors = from_child.recv()
        child.join()
    assert not errors, errors
    found.append(rate)


async def type_keys(target, model, lines, seconds):
    """Return the latencies of keystrokes in milliseconds."""
    connection, times, until_s = await Connection.open(target), [], time.perf_counter() + seconds
    typed = (line[:end] for line in itertools.cycle(lines) for end in range(1, len(line) + 1))
    while (sent_s := time.perf_counter()) < until_s:
        body = {"text": next(typed), "model": model, "session": "typist"}
        reply = await connection.send(Request("/v1/autocomplete", json.dumps(body).encode()))
        assert reply.status == 200, reply.body
        times.append(1e3 * (reply.ended_s - sent_s))
        await asyncio.sleep(_PAUSE_S)
    connection.close()
    return times


def look(target, model, requests, lines, seconds):
    """Return p50, p99 and maximum of keystroke latency in milliseconds, and the clients' replies per second."""
    with company(target, requests) as rate:
        times = asyncio.run(type_keys(target, model, lines, seconds))
    time.sleep(_SETTLE_S)
    return [*np.percentile(times, [50, 99, 100]), rate[0]]


def interval(values):
    """Return the median and its 95 % bootstrap interval as text."""
    values = np.asarray(values)
    drawn = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.percentile(np.median(values[drawn], axis=1), [2.5, 97.5])
    return f"{np.median(values):7.2f} [{low:7.2f}, {high:7.2f}]"


def show(title, seen):
    """Print the figures of one model and load: rounds of each service."""
    for name, rounds in seen.items():
        values = zip(FIGURES, np.array(rounds).T, strict=True)
        print(f"{title:18} {name:7} " + "   ".join(f"{what} {interval(column)}" for what, column in values))
    if len(seen) == 2:
        ratios = np.array(seen["new"]) / np.maximum(seen["old"], 1e-9)
        values = zip(FIGURES[:-1], ratios.T[:-1], strict=True)
        print(f"{title:18} new/old " + "   ".join(f"{what} {interval(column)}" for what, column in values))
    sys.stdout.flush()


@contextlib.contextmanager
def serving(checkouts, registry):
    """Start a service for each checkout, one process each; yield their targets."""
    servers, targets = [], {}
    try:
        for name, root in checkouts.items():
            port = free_port()
            command = [*GRAMOPHONE, "serve", "--registry", str(registry)]
            servers.append(subprocess.Popen([*command, "--port", str(port)], cwd=root, **QUIET))
            wait_until_ready(port)
            targets[name] = Target.parse(f"http://127.0.0.1:{port}")
        yield targets
    finally:
        for server in servers:
            server.terminate()
            server.wait()


def measure_all(targets, given):
    """Measure every model and load, by service; the services take turns in each round."""
    texts = typed_texts(None, longer_than=4)
    kinds = [_WITHOUT, *(given.company or COMPANY)]
    asked = {
        (model, kind): requests_of(kind, model, texts) if kind != _WITHOUT else []
        for model in given.model or ["ngram", "lstm"]
        for kind in kinds
    }
    seen = {key: {name: [] for name in targets} for key in asked}
    for (model, _), requests in asked.items():
        for target in targets.values():
            look(target, model, requests, texts, _WARMUP_S)
    for turn in range(given.pairs):
        for place, (key, requests) in enumerate(asked.items()):
            lines = texts[(turn * len(asked) + place) * 20 % len(texts) :]
            for name in list(targets)[:: 1 if turn % 2 else -1]:
                seen[key][name].append(look(targets[name], key[0], requests, lines, given.seconds))
        print(f"round {turn + 1} of {given.pairs}", file=sys.stderr, flush=True)
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--old", type=Path, default=None, help="another checkout, measured in turn with this one"
    )
    parser.add_argument("--pairs", type=int, default=3, help="number of rounds")
    parser.add_argument("--seconds", type=float, default=4, help="typing time per measurement")
    parser.add_argument("--model", action="append", default=None)
    parser.add_argument("--company", action="append", choices=tuple(COMPANY), default=None)
    parser.add_argument("--registry", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None, help="file for the figures of all rounds")
    given = parser.parse_args()
    checkouts = {"new": ROOT} if given.old is None else {"old": given.old.resolve(), "new": ROOT}
    with registry_at(given.registry) as registry:
        quickstart(registry)
        with serving(checkouts, registry.resolve()) as targets:
            seen = measure_all(targets, given)
    for (model, kind), found in seen.items():
        show(f"{model}, {kind}", found)
    if given.json is not None:
        told = {" ".join(key): found for key, found in seen.items()}
        given.json.write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
