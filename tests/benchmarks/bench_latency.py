"""Keystrokes at a steady rate, alone and while re-ranking uses the rest of the machine.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_latency.py [--seconds 20] [--ngram-rate 300] [--typing-rate 20]

Open loop: requests leave at the times of a Poisson process whether or not earlier ones have ended, and a request's
time counts from when it was due. The n-gram model is of order 5 over the novels; typists use a mixture of an n-gram
model and an LSTM, with one more word in each request; then completions of up to one, two and three words at the ends of
such texts, one at a time. The bulk is n-best lists of 100 candidates, four requests at a
time. Without the public data the models are those of the quickstart. Nothing is written outside a temporary folder
unless --registry names one, whose models are reused.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_service import NO_OP
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

from service.bench.driver import run_load
from service.bench.plan import LoadSettings, OpenLoop, Request, Target
from service.bench.results import summarise_load
from service.bench.workloads import workload_requests

WARMUP_S = 1


def open_loop(title, port, requests, rate, seconds):
    """Print the percentiles of one open loop."""
    terms = LoadSettings(duration_s=seconds, warmup_s=WARMUP_S)
    target = Target.parse(f"http://127.0.0.1:{port}")
    summary = summarise_load(run_load(target, requests, OpenLoop(rate), terms))
    assert not summary.errors, summary.errors
    latency = summary.latency_ms
    found = {"p50": latency.p50, "p90": latency.p90, "p99": latency.p99, "p99.9": latency.p999}
    times = "   ".join(f"{name} {time_ms:6.2f} ms" for name, time_ms in found.items() if time_ms)
    late = f"late by {summary.generator.lateness_ms.highest:.2f} ms"
    print(f"{title:44} {times}   at {summary.achieved_per_s:5.0f}/s, {late}", flush=True)


def completion_requests(texts, max_words, count):
    """Return requests for completions, each after a text cut at a random character."""
    choice = random.Random(max_words)
    prompts = [text[: choice.randrange(10, len(text))] for text in choice.choices(texts, k=count)]
    bodies = ({"model": "mixture", "text": text, "limit": 10, "max_words": max_words} for text in prompts)
    return [Request("/v1/autocomplete", json.dumps(body).encode()) for body in bodies]


def start_reranking(port, texts, seconds):
    """Start a closed loop of four requests with ten lists of 100 candidates each, in a process of its own."""
    command = [*GRAMOPHONE, "bench", f"http://127.0.0.1:{port}", "--model", "mixture", "--text", str(texts)]
    options = ["--workload", "rerank", "--items", "1000", "--clients", "4", "--duration", f"{seconds}s"]
    return subprocess.Popen(
        [*command, *options, "--warmup", "0", "--json"], stdout=subprocess.PIPE, text=True
    )


def run(port, texts, given, folder):
    """Print the service's figures."""
    num_typed = int(given.typing_rate * (given.seconds + WARMUP_S)) + 100
    quick = workload_requests("next-token", texts=texts, model="ngram", count=30_000)
    slow = workload_requests("next-token", texts=texts, model="mixture", count=2 * num_typed)
    open_loop("n-gram", port, quick, given.ngram_rate, given.seconds)
    open_loop("mixture, a word more each time", port, slow[:num_typed], given.typing_rate, given.seconds)
    for max_words in (1, 2, 3):
        phrases = completion_requests(
            texts, max_words, int(given.phrase_rate * (given.seconds + WARMUP_S)) + 100
        )
        title = f"completions of up to {max_words} words"
        open_loop(title, port, phrases, given.phrase_rate, given.seconds)
    texts_file = folder / "texts"
    short = (" ".join(text.split()[:25]) for text in texts)  # as in speech or translation
    texts_file.write_text("\n".join(short), encoding="utf-8")
    rival = start_reranking(port, texts_file, 2 * given.seconds + 6)
    time.sleep(5)
    open_loop("the same beside re-ranking", port, slow[num_typed:], given.typing_rate, given.seconds)
    open_loop("n-gram beside re-ranking", port, quick, given.ngram_rate, given.seconds)
    (bulk,) = json.loads(rival.communicate()[0])["runs"]
    print(f"re-ranking meanwhile: {bulk['items_per_s']:,.0f} candidates/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--ngram-rate", type=float, default=300)
    parser.add_argument("--typing-rate", type=float, default=20)
    parser.add_argument("--phrase-rate", type=float, default=10)
    parser.add_argument("--registry", type=Path, default=None)
    given = parser.parse_args()
    data = data_folder()
    with tempfile.TemporaryDirectory() as folder, registry_at(given.registry) as registry:
        ngram_and_mixture(registry, data)
        ports = free_port(), free_port()
        command = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(ports[1])]
        nothing = subprocess.Popen([sys.executable, "-c", NO_OP, str(ports[0])], **QUIET)
        server = subprocess.Popen(command, **QUIET)
        try:
            for port in ports:
                wait_until_ready(port)
            empty = [Request("/v1/next-token", b"{}")]
            open_loop("a route that does nothing", ports[0], empty, given.ngram_rate, given.seconds)
            run(ports[1], typed_texts(data), given, Path(folder))
        finally:
            for process in (nothing, server):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
