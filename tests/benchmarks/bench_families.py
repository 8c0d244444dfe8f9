"""Every family's small recipe on one text, from training to a reply over HTTP: a table for comparison.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_families.py [--epochs 3] [--set KEY=VALUE ...]

The command line trains and publishes each recipe and evaluates it with the state carried across lines; a service
with all models then scores a sentence. Without the public data the text is Python's own documentation. Output goes
to a temporary folder unless --registry names one; models that are already there are not trained again.
"""

import argparse
import contextlib
import json
import subprocess
import time
from pathlib import Path

import httpx
from preparation import GRAMOPHONE, QUIET, data_folder, free_port, registry_at, train

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import LocalRegistry

RECIPES = ("ngram", "feed-forward", "elman", "mingru", "gru", "lstm", "mixture")


def publish(recipe, registry, data, epochs, settings):
    """Train and publish a recipe, unless it is published."""
    texts = [] if data is None else [f"--{part}={data / f'{part}.txt.xz'}" for part in ("valid", "test")]
    corpus = [] if data is None else [f"--corpus={data / 'train.txt.xz'}"]
    bounds = () if recipe == "ngram" else ("--set", f"train.epochs={epochs}")
    train(registry, recipe, recipe, *corpus, *texts, *bounds, *settings)


def evaluated(recipe, registry, data):
    """Test perplexity with the state carried across lines; None without a test text."""
    if data is None:
        return None
    command = [*GRAMOPHONE, "evaluate", recipe, "--registry", str(registry), "--context", "stream", "--json"]
    command += ["--corpus", str(data / "test.txt.xz")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["word_perplexity"]


def ask_all(registry, recipes):
    """Score one sentence with all models of a service: log-probability and milliseconds by recipe."""
    port = free_port()
    command = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(port)]
    server = subprocess.Popen(command, **QUIET)
    answers = {}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for recipe in recipes:
                _wait_for(client, recipe)
            for recipe in recipes:
                seconds = []
                for _ in range(20):
                    began = time.perf_counter()
                    reply = client.post("/v1/score", json={"model": recipe, "texts": ["It was a fine day ."]})
                    seconds.append(time.perf_counter() - began)
                answers[recipe] = (
                    reply.raise_for_status().json()["results"][0]["logprob"],
                    sorted(seconds)[10],
                )
    finally:
        server.terminate()
        server.wait()
    return answers


def _wait_for(client, recipe):
    """Return once the service has loaded a model."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            if client.get(f"/v1/models/{recipe}").json().get("state") == "loaded":
                return
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--registry", type=Path, default=None)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--set", action="append", default=["tokenizer.kind=word"])
    given = parser.parse_args()
    root = data_folder()
    data = None if root is None else root / "novels-1m"
    settings = [part for one in given.set for part in ("--set", one)]
    with registry_at(given.registry) as registry:
        rows = {}
        for recipe in given.recipes:
            began = time.monotonic()
            publish(recipe, registry, data, given.epochs, settings)
            minutes = (time.monotonic() - began) / 60
            loaded = load_checkpoint(LocalRegistry(registry).resolve(recipe).path, device="cpu")
            rows[recipe] = loaded.manifest.parameters, minutes, evaluated(recipe, registry, data)
            print(recipe, *rows[recipe], flush=True)
        answers = ask_all(registry, given.recipes)
    print("| recipe | parameters | minutes | test perplexity | score of a sentence | ms over HTTP |")
    print("|---|---|---|---|---|---|")
    for recipe, (parameters, minutes, perplexity) in rows.items():
        logprob, seconds = answers[recipe]
        shown = "" if perplexity is None else f"{perplexity:.1f}"
        print(
            f"| {recipe} | {parameters:,} | {minutes:.1f} | {shown} | {logprob:.2f} | {1e3 * seconds:.1f} |"
        )


if __name__ == "__main__":
    main()
