"""Time of proposals over HTTP: single texts, and lists of 100 candidates, with phrases and forms.

    [GRAMOPHONE_DATA=…] python tests/benchmarks/bench_correct.py [--rounds 60] [--registry DIR]

Texts have 20 words of the novels or Python's documentation; in the candidates of a list two words are others'. The
phrases are 1,000 random pairs of words, in a stored list; the model is an n-gram model of order 3. All kinds of
requests take turns on one connection; a ratio is the median of those to the same list without proposals in the
same turn.
"""

import argparse
import json
import os
import random
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
    novels_or_documentation,
    registry_at,
    train,
    wait_until_ready,
)

NUM_PHRASES, NUM_WORDS, NUM_CANDIDATES, WARM_UP = 1000, 20, 100, 5


def requests_of(words, rng):
    """Return the requests of a turn by name: path and body."""

    def text():
        begin = rng.randrange(len(words) - NUM_WORDS)
        return words[begin : begin + NUM_WORDS]

    def varied(given):
        changed = list(given)
        for place in rng.sample(range(NUM_WORDS), 2):
            changed[place] = rng.choice(words)
        return {"text": " ".join(changed)}

    one, listed = " ".join(text()), text()
    lists, stored = [{"candidates": [varied(listed) for _ in range(NUM_CANDIDATES)]}], {"wordlist": "names"}
    return {
        "text": ("rerank", {"lists": [{"candidates": [{"text": one}]}]}),
        "text, phrases": ("correct", {"texts": [one], **stored}),
        "text, forms": ("correct", {"texts": [one], "forms": "en"}),
        "list": ("rerank", {"lists": lists}),
        "list, forms": ("rerank", {"lists": lists, "forms": "en"}),
        "list, phrases that are there": ("rerank", {"lists": lists, "phrases": [stored]}),
        "list, phrases": ("rerank", {"lists": lists, "phrases": [stored], "propose": True}),
    }


PLAIN = {"list, forms": "list", "list, phrases": "list, phrases that are there"}
"""Kinds of requests, and the same without proposals."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--registry", type=Path)
    given = parser.parse_args()
    rng = random.Random(0)
    sentences = novels_or_documentation(data_folder(), 100_000)
    words = " ".join(sentences["test"][:2000]).lower().split()
    rare = sorted({word for word in words if word.isalpha() and len(word) > 4})
    with registry_at(given.registry) as folder:
        text = folder / "told.txt"
        text.write_text("\n".join(sentences["train"]).lower(), encoding="utf-8")
        train(
            folder,
            "ngram",
            "told",
            f"--corpus={text}",
            "--set",
            "tokenizer.kind=word",
            "--set",
            "ngram.order=3",
        )
        port = free_port()
        settings = {"GRAMOPHONE_WORDLISTS": str(folder / "lists"), "GRAMOPHONE_LOG_LEVEL": "warning"}
        command = [*GRAMOPHONE, "serve", "--registry", str(folder), "--port", str(port)]
        service = subprocess.Popen(command, env={**os.environ, **settings}, **QUIET)  # noqa: TID251
        try:
            wait_until_ready(port)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1/", timeout=60) as client:
                lines = "".join(json.dumps(" ".join(rng.sample(rare, 2))) + "\n" for _ in range(NUM_PHRASES))
                client.put("wordlists/names", content=lines, headers={"content-type": "application/x-ndjson"})
                measure(client, words, rng, given.rounds)
        finally:
            service.terminate()
            service.wait()


def measure(client, words, rng, rounds):
    """Print the median of each kind of request, and of its ratio to that without proposals."""
    taken = []
    for _ in range(rounds + WARM_UP):
        turn = {}
        for name, (path, body) in requests_of(words, rng).items():
            content = json.dumps(body)
            began = time.perf_counter()
            reply = client.post(path, content=content, headers={"content-type": "application/json"})
            turn[name] = 1000 * (time.perf_counter() - began)
            if reply.status_code != 200:
                sys.exit(reply.text)
        taken.append(turn)
    for name in taken[0]:
        line = f"{name:30} {statistics.median(one[name] for one in taken[WARM_UP:]):6.2f} ms"
        if (plain := PLAIN.get(name)) is not None:
            ratio = statistics.median(one[name] / one[plain] for one in taken[WARM_UP:])
            line += f"   {ratio:.2f} times {plain}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
