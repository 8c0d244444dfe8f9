"""Preparation of benchmarks: public data, peers, models, free ports, ready services.

It also reports missing requirements.
"""

import contextlib
import importlib
import itertools
import json
import lzma
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from service.bench.workloads import candidate_variants, default_texts, shuffled
from training.progress import Progress
from training.texts import read_default_corpus

GRAMOPHONE = (sys.executable, "-m", "service.cli")
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
LEFT_OUT = 77
"""Exit status of a benchmark that cannot run here, following automake's convention; `run.py` checks it."""
REASON = "left out: "
"""Prefix of the line that states the reason."""


def leave_out(why):
    """Print why nothing is measured, and exit as skipped."""
    print(f"{REASON}{why}")
    sys.exit(LEFT_OUT)


def data_folder():
    """Return the folder of public data, or None."""
    named = os.environ.get("GRAMOPHONE_DATA")  # noqa: TID251 - benchmarks are no part of the service
    return Path(named) if named else None


def needed_data():
    """Return the folder of public data; without it the benchmark is skipped."""
    return data_folder() or leave_out("it needs the public data: set GRAMOPHONE_DATA to their folder")


def peer(module, package):
    """Import a module to compare with; if it is not installed the benchmark is skipped."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        return leave_out(f"{module} is not installed: pip install '{package}'")


def read_lines(path):
    """Return the lines of a compressed text."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines]


def typed_texts(data, longer_than=8):
    """Return sentences of more than `longer_than` words, of the novels or Python's documentation, as typed text."""
    if data is None:
        return [text for text in default_texts() if len(text.split()) > longer_than]
    lines = itertools.islice(read_lines(data / "novels-1m" / "test.txt.xz"), 2000)
    return [line.strip() for line in lines if len(line.split()) > longer_than]


def novels_or_documentation(data, sentences=None):
    """Return sentences of the novels or Python's documentation, by split; `sentences` limits the training text."""
    if data is None:
        parts = zip(("train", "valid", "test"), read_default_corpus(Progress()), strict=True)
        splits = {split: one.sentences for split, one in parts}
    else:
        splits = {
            split: read_lines(data / "novels" / f"novels.{split}.txt.xz")
            for split in ("train", "valid", "test")
        }
    return splits | {"train": splits["train"][:sentences]}


def lists_of_variants():
    """Return sentences of Python's documentation, each with four variants: a substitute for a recogniser's lists."""
    texts, choice = shuffled(default_texts(), seed=0), random.Random(0)
    words = " ".join(texts[:200]).split()
    return [[text, *candidate_variants(text, words, 4, choice)] for text in texts]


@contextlib.contextmanager
def registry_at(given):
    """Yield the given folder, created if missing, or a temporary one."""
    with tempfile.TemporaryDirectory() as name:
        folder = given or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def gramophone(*arguments):
    """Run a command quietly and return its output; on failure exit with its error output."""
    done = subprocess.run([*GRAMOPHONE, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"gramophone {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")
    return done.stdout


def gramophone_json(*arguments):
    """Return what a command prints with --json."""
    return json.loads(gramophone(*arguments, "--json"))


def train(registry, recipe, name, *options):
    """Train and publish a model of a recipe, unless one of that name exists."""
    if not (registry / name).exists():
        gramophone("train", recipe, "--name", name, "--registry", registry, *options)


def quickstart(registry):
    """Publish the quickstart's models if the registry is empty: `ngram`, `lstm`, `mixture`."""
    gramophone("quickstart", "--if-empty", "--registry", registry)


def ngram_and_mixture(registry, data):
    """Publish `ngram`, of order 5, and `mixture`, with a barely trained LSTM; without data the quickstart's."""
    if data is None:
        quickstart(registry)
        return
    words, small = ("--set", "tokenizer.kind=word"), data / "novels-1m"
    novels = [f"--corpus={path}" for path in sorted((data / "novels").glob("*.train.txt.xz"))]
    train(registry, "ngram", "ngram", *novels, *words, "--set", "ngram.order=5")
    texts = (f"--corpus={small / 'train.txt.xz'}", f"--valid={small / 'valid.txt.xz'}")
    train(
        registry,
        "mixture",
        "mixture",
        *texts,
        *words,
        "--set",
        "train.max_steps=30",
        "--set",
        "mixture.drop_unused=false",
    )


def free_port():
    """Return an unused port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until_ready(port):
    """Wait until the service on a port is ready."""
    while True:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                s.sendall(b"GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                if b" 200 " in s.recv(100):
                    return
        time.sleep(0.2)
