"""Latency of /v1/check for a sentence of twenty words, beside /v1/score of the same sentence.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_check.py [--registry FOLDER --models kn5,mix] [--count 200]

Requests go one after the other over one connection, each with a new sentence; up to half of its words are looked up
for the first time. In an empty registry an n-gram model of order 5 and a mixture with a barely trained LSTM are
built, from the novels or else as the quickstart does: latency depends on a model's size, not on its quality.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
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

WORDS = 20


def sentences(data, count):
    """Return a number of sentences of twenty words, cut from longer ones."""
    words = [text.split() for text in typed_texts(data)]
    long = [" ".join(text[:WORDS]) for text in words if len(text) >= WORDS]
    return [long[k % len(long)] for k in range(count)]


def measure(http, path, bodies):
    """Return the milliseconds of each request, sorted."""
    took = []
    for body in bodies:
        began = time.perf_counter()
        http.post(path, json=body).raise_for_status()
        took.append(1000 * (time.perf_counter() - began))
    return sorted(took)


def compare(http, model, texts):
    """Print the times of both endpoints with one model."""
    measure(http, "/v1/check", [{"text": texts[0], "model": model}])  # builds what is built once
    check = measure(http, "/v1/check", [{"text": text, "model": model} for text in texts])
    score = measure(
        http, "/v1/score", [{"texts": [text], "model": model, "detail": "word"} for text in texts]
    )
    middle, last = statistics.median(check), check[int(0.99 * len(check))]
    print(
        f"{model}: check p50 {middle:.2f} ms, p99 {last:.2f} ms; "
        f"score p50 {statistics.median(score):.2f} ms; ratio {middle / statistics.median(score):.1f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registry", type=Path)
    parser.add_argument("--models", default="ngram,mixture")
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    data = data_folder()
    with registry_at(options.registry) as registry:
        if not any(registry.iterdir()):
            ngram_and_mixture(registry, data)
        models, port = options.models.split(","), free_port()
        environment = {**os.environ, "GRAMOPHONE_MODELS": options.models}  # noqa: TID251
        command = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(port)]
        server = subprocess.Popen(command, env=environment, **QUIET)
        try:
            wait_until_ready(port)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
                for model in models:
                    compare(http, model, sentences(data, options.count))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
