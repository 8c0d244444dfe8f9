"""32 concurrent generations over HTTP, beside a bare loop that steps and samples the same model at batch 32.

    python tests/benchmarks/bench_engine.py [--precision int8] [--hidden-size 512] [--vocab-size 16000]

The model is random: every text runs to its limit. The bare loop has a process of its own; the service and its
clients share the machine. Rounds alternate; read the ratios.
Nothing is written outside a temporary folder.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from preparation import free_port, wait_until_ready

from models.checkpoint.load import CheckpointDescription, load_checkpoint, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import Vocabulary
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.tokenizers import WordTokenizer
from service.bench.connection import Connection
from service.bench.plan import Request, Target

ROWS = 32


def publish(root, layers, hidden, vocab_size):
    """Publish a random LSTM under the name `m`."""
    torch.manual_seed(0)
    vocabulary = Vocabulary([f"w{i}" for i in range(vocab_size - 3)])
    config = NetworkConfig(cell="lstm", layers=layers, embedding_size=hidden, hidden_size=hidden)
    model = NeuralModel(Network(config, vocab_size), vocabulary)
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
    LocalRegistry(root, create=True).publish(
        "m", lambda folder: write_checkpoint(folder, model, WordTokenizer(vocabulary), about)
    )


def bare_loop(registry, precision, tokens):
    """Return the tokens per second of a loop that steps and samples 32 rows at once."""
    path = LocalRegistry(Path(registry)).resolve("m").path
    model = load_checkpoint(path, device="cpu", precision=precision).model
    random = np.random.default_rng(0)
    state = model.initial_state(ROWS)
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(tokens):
            log_probs = model.next_log_probs(state)
            mass = np.cumsum(np.exp(log_probs), axis=1)
            draws = random.random(ROWS, dtype=np.float32) * mass[:, -1]
            chosen = np.array([np.searchsorted(row, draw) for row, draw in zip(mass, draws, strict=True)])
            state = model.advance(state, np.minimum(chosen, mass.shape[1] - 1))
        rates.append(ROWS * tokens / (time.perf_counter() - began))
    print(statistics.median(rates))


async def generate(port, tokens, stream):
    """Send one generation over a connection; return its number of tokens."""
    connection = await Connection.open(Target.parse(f"http://127.0.0.1:{port}"))
    body = {"prompt": "w5 w6", "max_tokens": tokens, "ignore_eos": True, "stream": stream, "seed": 1}
    reply = await connection.send(Request("/v1/generate", json.dumps(body).encode()))
    connection.close()
    assert reply.status == 200, reply.body
    return reply.num_tokens


async def served(port, tokens, stream):
    """Return the tokens per second of 32 concurrent requests."""
    began = time.perf_counter()
    counts = await asyncio.gather(*(generate(port, tokens, stream) for _ in range(ROWS)))
    return sum(counts) / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=["int8", "float32"], nargs="+", default=["int8", "float32"])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--vocab-size", type=int, default=16_000)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        bare_loop(given.bare, given.precision[0], given.tokens)
        return
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder) / "registry"
        publish(registry, given.layers, given.hidden_size, given.vocab_size)
        for precision in given.precision:
            measure(registry, precision, given)


def measure(registry, precision, given):
    """Print one precision's figures."""
    port = free_port()
    command = [sys.executable, "-m", "service.cli", "serve", "--registry", str(registry)]
    options = ["--port", str(port), "--precision", precision]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([*command, *options], **quiet)
    rates = {"bare loop": [], "unstreamed": [], "streamed": []}
    try:
        wait_until_ready(port)
        asyncio.run(served(port, 8, stream=False))
        loop = [sys.executable, __file__, "--bare", str(registry), "--precision", precision]
        for _ in range(given.rounds):
            done = subprocess.run(
                [*loop, "--tokens", str(given.tokens)], check=True, capture_output=True, text=True
            )
            rates["bare loop"].append(float(done.stdout))
            rates["unstreamed"].append(asyncio.run(served(port, given.tokens, stream=False)))
            rates["streamed"].append(asyncio.run(served(port, given.tokens, stream=True)))
    finally:
        server.terminate()
        server.wait()
    bare = statistics.median(rates["bare loop"])
    for name, values in rates.items():
        rate = statistics.median(values)
        print(
            f"{precision:8} {name:11} {rate:8,.0f} tokens/s   {rate / bare:5.2f} x the bare loop", flush=True
        )


if __name__ == "__main__":
    main()
