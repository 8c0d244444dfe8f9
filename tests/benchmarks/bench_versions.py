"""This checkout beside another one: the same models, requests and loads, measured in turn.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_versions.py --old CHECKOUT [--pairs 10] [--seconds 2]
        [--only http start process] [--registry DIR] [--json FILE]

`http` loads an int8 service of each checkout with the requests of bench_peers, bench_engine, bench_latency and
bench_rerank, and with 1,000 texts in one request that share their prefixes. `start` times `gramophone serve` until its
first reply, and commands.
`process` times steps and sentences in a process of each checkout, as bench_int8 and bench_ngram do. One side is stopped
(SIGSTOP, or waiting for its turn) while the other works, and the order changes from pair to pair. The output is
medians and the ratio new to old with the 95 % interval of its median (bootstrap over pairs).
Nothing is written outside a temporary folder unless --registry names one, whose models are reused.
"""

import argparse
import contextlib
import json
import os
import random as python_random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
_VOCAB_SIZE = 16_000  # of the random LSTM
_WARMUP_S = 0.4
_FIRST_RUNS = 2  # warm-up runs of each workload in a process
_LEAST_S = 0.2  # minimum work in a process for one figure


# --- in a process of one checkout: no module of this project is imported before -------------------------


def steps(model, rows):
    """Advance rows by one token, then predict, repeatedly."""
    random, state = np.random.default_rng(0), model.initial_state(rows)

    def step():
        nonlocal state
        state = model.advance(state, random.integers(3, len(model.vocabulary), rows))
        return model.next_log_probs(state)

    return step


def sentences(model, count):
    """Score a number of sequences of 20 tokens in one call."""
    try:
        from models.language_model import pad_sequences, score_sequences
    except ImportError:  # a checkout older than both names
        from models.scoring import pad as pad_sequences
        from models.scoring import score_sequences
    ids = np.random.default_rng(0).integers(3, len(model.vocabulary), (count, 20))
    tokens, lengths = pad_sequences(ids)
    return lambda: score_sequences(model, model.initial_state(count), tokens, lengths)


def top_ten(model, rows):
    """Rank the next tokens after rows of random tokens."""
    random, state = np.random.default_rng(0), model.initial_state(rows)
    for _ in range(4):
        state = model.advance(state, random.integers(3, len(model.vocabulary), rows))
    return lambda: model.top_k(state, 10)


PROCESS = {
    "int8: a step of 1 row": ("m", steps, 1),
    "int8: a step of 16 rows": ("m", steps, 16),
    "int8: a step of 64 rows": ("m", steps, 64),
    "int8: 16 sentences of 20 tokens": ("m", sentences, 16),
    "n-gram: a step of 1 row": ("ngram", steps, 1),
    "n-gram: a step of 64 rows": ("ngram", steps, 64),
    "n-gram: 1,000 sentences of 20 tokens": ("ngram", sentences, 1000),
    "n-gram: top 10 of 64 rows": ("ngram", top_ten, 64),
}


def work(registry):
    """Reply to each workload name on standard input with the seconds of one run."""
    from models.checkpoint.load import load_checkpoint

    loaded, runs = {}, {}
    for line in sys.stdin:
        title = line.strip()
        name, make, size = PROCESS[title]
        if name not in loaded:
            precision = "int8" if name == "m" else "float32"
            path = Path(registry) / name / "versions" / "1"
            loaded[name] = load_checkpoint(path, device="cpu", precision=precision).model
        if title not in runs:
            runs[title] = make(loaded[name], size)
            for _ in range(_FIRST_RUNS):
                runs[title]()
        began, count = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < _LEAST_S:
            runs[title]()
            count += 1
        print(passed / count, flush=True)


# --- measuring both -------------------------------------------------------------------------------------


class Server:
    """Service of one checkout, stopped except during its turn."""

    def __init__(self, root, registry):
        from preparation import GRAMOPHONE, QUIET, free_port, wait_until_ready

        from service.bench.plan import Target

        port = free_port()
        command = [
            *GRAMOPHONE,
            "serve",
            "--registry",
            str(registry),
            "--precision",
            "int8",
            "--port",
            str(port),
        ]
        self._process = subprocess.Popen(
            command, cwd=root, env=environment(root), start_new_session=True, **QUIET
        )
        wait_until_ready(port)
        self._target = Target.parse(f"http://127.0.0.1:{port}")

    @contextlib.contextmanager
    def turn(self):
        """Yield the target while the process runs."""
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            yield self._target
        finally:
            os.killpg(self._process.pid, signal.SIGSTOP)

    def close(self):
        """Stop the service."""
        os.killpg(self._process.pid, signal.SIGCONT)
        self._process.terminate()
        self._process.wait()


def environment(root):
    """Return the environment in which a program imports that checkout's packages."""
    return {**os.environ, "PYTHONPATH": str(root)}  # noqa: TID251 - benchmarks are no part of the service


def http_workloads(data):
    """Map a title to requests, loop, function that reads the figure, and True if more is better."""
    from bench_peers import GENERATE, SCORE
    from preparation import typed_texts

    from service.bench.plan import ClosedLoop, OpenLoop, Request
    from service.bench.workloads import candidate_variants

    random, texts = np.random.default_rng(0), typed_texts(data)
    words = " ".join(texts[:200]).split()

    def ask(path, **body):
        return Request(path, json.dumps(body).encode())

    def rate(summary):
        return summary.achieved_per_s

    def tokens(summary):
        return summary.tokens_per_s

    def p50_ms(summary):
        return summary.latency_ms.p50

    def p99_ms(summary):
        return summary.latency_ms.highest

    def lists(model, count):
        choice = python_random.Random(0)
        variants = (candidate_variants(text, words, 100, choice) for text in texts[:count])
        candidates = ([{"text": variant} for variant in some] for some in variants)
        return [ask("/v1/rerank", model=model, lists=[{"candidates": some}]) for some in candidates]

    beginning = " ".join(words[:12])
    shared = [f"{beginning} {words[i % len(words)]} {words[(7 * i) % len(words)]}" for i in range(1000)]
    ids = [" ".join(f"w{i}" for i in row) for row in random.integers(0, _VOCAB_SIZE - 3, (1000, 2))]
    long_beginning = " ".join(f"w{i}" for i in random.integers(0, _VOCAB_SIZE - 3, 12))
    generations = [
        ask("/v1/generate", model="m", prompt="w5 w6", max_tokens=96, ignore_eos=True, seed=seed) for seed in range(64)
    ]  # fmt: skip
    contexts = [ask("/v1/next-token", model="ngram", context=text) for text in texts[:500]]
    typed = [ask("/v1/next-token", model="mixture", context=text) for text in texts[:500]]

    def ours(workload):
        return [
            request._replace(body=json.dumps({**json.loads(request.body), "model": "m"}).encode())
            for request in workload.requests("ours", 2000, random)
        ]

    scored = [ask("/v1/score", model="ngram", texts=[text]) for text in texts[:500]]
    shared_words = [ask("/v1/score", model="ngram", texts=shared)]
    shared_ids = [ask("/v1/score", model="m", texts=[f"{long_beginning} {tail}" for tail in ids])]
    many, four, one = ClosedLoop(32), ClosedLoop(4), ClosedLoop(1)
    return {
        "scoring 26 tokens, int8, 32 clients, requests/s": (ours(SCORE), many, rate, True),
        "generating 32 tokens, int8, 32 clients, requests/s": (ours(GENERATE), many, rate, True),
        "32 generations of 96 tokens, int8, tokens/s": (generations, many, tokens, True),
        "next-token, n-gram, 100/s, p50 ms": (contexts, OpenLoop(100.0), p50_ms, False),
        "next-token, n-gram, 100/s, p99 ms": (contexts, OpenLoop(100.0), p99_ms, False),
        "next-token, mixture, 40/s, p50 ms": (typed, OpenLoop(40.0), p50_ms, False),
        "scoring a text, n-gram, 16 clients, requests/s": (scored, ClosedLoop(16), rate, True),
        "re-ranking 100 candidates, n-gram, 4 clients, requests/s": (lists("ngram", 200), four, rate, True),
        "re-ranking 100 candidates, mixture, 4 clients, requests/s": (lists("mixture", 50), four, rate, True),
        "1,000 texts that share 12 words, n-gram, 1 client, requests/s": (shared_words, one, rate, True),
        "1,000 texts that share 12 words, int8, 1 client, requests/s": (shared_ids, one, rate, True),
    }


def compare_http(checkouts, registry, data, given):
    """Measure pairs of every load."""
    from service.bench.driver import run_load
    from service.bench.plan import LoadSettings
    from service.bench.results import summarise_load

    servers = {name: Server(root, registry) for name, root in checkouts.items()}
    settings = LoadSettings(duration_s=given.seconds, warmup_s=_WARMUP_S)
    seen = {}
    try:
        for title, (requests, loop, figure, more) in http_workloads(data).items():

            def measure(name, requests=requests, loop=loop, figure=figure, title=title):
                with servers[name].turn() as target:
                    summary = summarise_load(run_load(target, requests, loop, settings))
                errors = {kind: error for kind, error in summary.errors.items() if kind != "unfinished"}
                assert not errors, (title, name, errors)
                return figure(summary)

            for name in servers:  # both compile and cache for these requests
                measure(name)
            seen[title] = pairs(measure, given.pairs)
            show(title, seen[title], more=more)
    finally:
        for server in servers.values():
            server.close()
    return seen


def compare_start(checkouts, registry, given):
    """Measure pairs of starts until the first reply, and of commands."""
    from preparation import GRAMOPHONE, QUIET, free_port

    def first_answer(name):
        port, began = free_port(), time.perf_counter()
        command = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(port)]
        root = checkouts[name]
        server = subprocess.Popen(command, cwd=root, env=environment(root), **QUIET)
        try:
            while subprocess.run(
                ["curl", "-sf", "-o", os.devnull, f"http://127.0.0.1:{port}/v1/next-token",
                 "-H", "content-type: application/json", "-d", '{"context": "Return the", "model": "ngram"}'],
                check=False,
            ).returncode:  # fmt: skip
                time.sleep(0.01)
            return time.perf_counter() - began
        finally:
            server.terminate()
            server.wait()

    def command(*arguments):
        def run(name):
            root, began = checkouts[name], time.perf_counter()
            subprocess.run([*GRAMOPHONE, *arguments], cwd=root, env=environment(root), check=True, **QUIET)
            return time.perf_counter() - began

        return run

    timed = {
        "`serve` until the first answer, s": first_answer,
        "`--help`, s": command("--help"),
        "`models list`, s": command("models", "list", "--registry", str(registry)),
        "`next`, s": command("next", "ngram", "Return the", "--registry", str(registry)),
    }
    seen = {}
    for title, measure in timed.items():
        for name in checkouts:
            measure(name)
        seen[title] = pairs(measure, given.pairs)
        show(title, seen[title], more=False)
    return seen


def compare_process(checkouts, registry, given):
    """Measure pairs of every workload in a process of each checkout."""
    workers = {
        name: subprocess.Popen(
            [sys.executable, __file__, "--work", str(registry)],
            cwd=root,
            env=environment(root),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, root in checkouts.items()
    }
    seen = {}
    try:
        for title in PROCESS:

            def measure(name, title=title):
                worker = workers[name]
                worker.stdin.write(f"{title}\n")
                worker.stdin.flush()
                return 1e6 * float(worker.stdout.readline())

            for name in workers:
                measure(name)
            seen[title] = pairs(measure, given.pairs)
            show(f"{title}, µs", seen[title], more=False)
    finally:
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()
    return seen


def pairs(measure, count):
    """Return the figures of both sides; the order changes from pair to pair."""
    seen = {"old": [], "new": []}
    for turn in range(count):
        for name in list(seen)[:: 1 if turn % 2 else -1]:
            seen[name].append(measure(name))
    return seen


def show(title, seen, *, more):
    """Print one row: medians, and the ratio with its interval."""
    from bench_heavy_company import interval

    old, new = np.array(seen["old"]), np.array(seen["new"])
    figures = f"old {np.median(old):9.2f}   new {np.median(new):9.2f}   new/old {interval(new / old)}"
    print(f"{title:66} {figures}   {'more' if more else 'less'} is better", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, help="the other checkout")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2, help="time of a load")
    parser.add_argument(
        "--only", nargs="+", choices=["http", "start", "process"], default=["process", "start", "http"]
    )
    parser.add_argument("--registry", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None, help="file for the figures of all pairs")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work)
        return
    from bench_engine import publish
    from preparation import data_folder, leave_out, ngram_and_mixture, registry_at

    if given.old is None:
        leave_out("it compares two checkouts: name the other one with --old")
    checkouts = {"old": given.old.resolve(), "new": ROOT}
    with registry_at(given.registry) as registry:
        registry = registry.resolve()  # noqa: PLW2901 - the services start in other folders
        ngram_and_mixture(registry, data_folder())
        if not (registry / "m").exists():
            publish(registry, layers=2, hidden=512, vocab_size=_VOCAB_SIZE)
        seen = {}
        if "process" in given.only:
            seen |= compare_process(checkouts, registry, given)
        if "start" in given.only:
            seen |= compare_start(checkouts, registry, given)
        if "http" in given.only:
            seen |= compare_http(checkouts, registry, data_folder(), given)
    if given.json is not None:
        given.json.write_text(json.dumps(seen, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
