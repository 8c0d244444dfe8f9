"""One call that continues 32 stored states by a word each, beside plain scoring of the same 32 words.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_states.py [--requests 200] [--rows 32] [--registry DIR]

The n-gram model is of order 5 over the novels (without the public data, that of the quickstart); the LSTM has
2×512 units and random weights over 16,000 words, in int8 and in single precision. Requests take turns over one
connection. `score` reads 32 texts of eight words; a state has already read the first seven.
`1 state, 32 words` continues one state in 32 ways, `next` requests full distributions [32, V]. Nothing is
written outside a temporary folder, unless --registry names one, whose model `ngram` is reused.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench_engine import publish
from preparation import (
    GRAMOPHONE,
    QUIET,
    data_folder,
    free_port,
    ngram_and_mixture,
    registry_at,
    wait_until_ready,
)

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import LocalRegistry
from service.bench.connection import Connection
from service.bench.plan import Request, Target

WORDS_BEFORE = 7


def words_of(registry, model):
    """Return some of a model's words."""
    tokens = load_checkpoint(LocalRegistry(registry).resolve(model).path).tokenizer.vocabulary.tokens[3:]
    return random.Random(0).sample(tokens, min(2000, len(tokens)))


async def ask(connection, path, body):
    """Return a reply's JSON."""
    reply = await connection.send(Request(path, json.dumps(body).encode()))
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


async def latencies(port, model, words, rows, requests):
    """Return the seconds of each request, by kind of request."""
    connection = await Connection.open(Target.parse(f"http://127.0.0.1:{port}"))
    choose = random.Random(1)
    contexts = [" ".join(choose.choices(words, k=WORDS_BEFORE)) for _ in range(rows)]
    opened = await ask(connection, "/v1/states", {"context": contexts, "model": model})
    states = [one["state"] for one in opened["states"]]
    seconds = {}
    for _ in range(requests):
        added = choose.sample(words, rows)
        texts = [f"{context} {word}" for context, word in zip(contexts, added, strict=True)]
        pairs = list(zip(states, added, strict=True))
        bodies = {
            "score, 32 texts of 8 words": ("/v1/score", {"texts": texts, "model": model, "eos": False}),
            "advance 32 states, kept": ("/v1/states/advance", continued(pairs, keep=True)),
            "advance 32 states, scored only": ("/v1/states/advance", continued(pairs, keep=False)),
            "1 state, 32 words, scored only": (
                "/v1/states/advance",
                continued([(states[0], word) for word in added], keep=False),
            ),
            "next, 32 states": ("/v1/states/next", {"states": states, "token_ids": list(range(3, 35))}),
        }
        for name, (path, body) in bodies.items():
            began = time.perf_counter()
            reply = await ask(connection, path, body)
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            if name.endswith(", kept"):
                kept = [one["state"] for one in reply["results"]]
                await ask(connection, "/v1/states/free", {"states": kept})
    connection.close()
    return seconds


def continued(pairs, *, keep):
    """Return a body for POST /v1/states/advance."""
    return {"continuations": [{"state": state, "text": word, "keep": keep} for state, word in pairs]}


def measure(registry, model, precision, given):
    """Print one model's figures."""
    port, words = free_port(), words_of(registry, model)
    options = ["--registry", str(registry), "--port", str(port), "--precision", precision]
    server = subprocess.Popen([*GRAMOPHONE, "serve", *options], **QUIET)
    try:
        wait_until_ready(port)
        asyncio.run(latencies(port, model, words, given.rows, 20))
        seconds = asyncio.run(latencies(port, model, words, given.rows, given.requests))
    finally:
        server.terminate()
        server.wait()
    for name, values in seconds.items():
        cut = statistics.quantiles(values, n=100)
        print(
            f"{model:6} {precision:8} {name:32} p50 {1e3 * cut[49]:7.2f} ms   p90 {1e3 * cut[89]:7.2f} ms",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--registry", type=Path, default=None)
    given = parser.parse_args()
    with registry_at(given.registry) as registry:
        ngram_and_mixture(registry, data_folder())
        measure(registry, "ngram", "float32", given)
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder) / "registry"
        publish(registry, 2, 512, 16_000)
        for precision in ("int8", "float32"):
            measure(registry, "m", precision, given)


if __name__ == "__main__":
    main()
