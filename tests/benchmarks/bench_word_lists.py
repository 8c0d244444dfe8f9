"""Stored word lists of a size beside a table of SQLite's: compiling, and the five heaviest words with a prefix.

    python tests/benchmarks/bench_word_lists.py [--entries 1000000] [--requests 500] [--registry DIR]

The words are made up. Both find the mass of all words with the prefix and the five heaviest; they take turns, and their
results are compared. `keystroke` asks a service with an n-gram model of words for completions of a word, without a list
and with one as dictionary and blocklist, and with a typing error.
"""

import argparse
import json
import os
import random
import sqlite3
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
from preparation import GRAMOPHONE, QUIET, free_port, registry_at, train, wait_until_ready

from models.calls import run_to_completion
from models.word_list import WordList, WordListBuilder, WordListInfo

LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
BATCH = 5000
WARM_UP = 10


def made_up(count, seed=1):
    """Return distinct words of 3 to 10 letters, frequent letters more often, and weights."""
    choose, found = random.Random(seed), {}
    while len(found) < count:
        size = choose.randint(3, 10)
        found["".join(choose.choices(LETTERS, range(26, 0, -1), k=size))] = round(1 / choose.random(), 2)
    return list(found.items())


def compiled(entries, path):
    """Return the compiled list, and the seconds taken."""
    began, builder = time.perf_counter(), WordListBuilder(WordListInfo("words"))
    for first in range(0, len(entries), BATCH):
        builder.add(entries[first : first + BATCH])
    builder.write(path)
    return WordList(path), time.perf_counter() - began


def table_of(entries, path):
    """Return SQLite's table of the same words, with an index of words and weights, and the seconds taken."""
    began, table = time.perf_counter(), sqlite3.connect(path)
    table.execute("CREATE TABLE words (word TEXT PRIMARY KEY, weight REAL) WITHOUT ROWID")
    table.executemany("INSERT INTO words VALUES (?, ?)", entries)
    table.commit()
    return table, time.perf_counter() - began


def compare(words, table, prefixes):
    """Print the microseconds of both by the prefix's length, and their ratio."""
    where = "FROM words WHERE word >= :from AND word < :to"
    for size in sorted({len(prefix) for prefix in prefixes}):
        taken = {"list": [], "table": []}
        for prefix in [one for one in prefixes if len(one) == size]:
            began = time.perf_counter()
            mass, best = run_to_completion(words.with_prefix([prefix], 5, ignore_case=False))
            between = time.perf_counter()
            span = {"from": prefix, "to": prefix[:-1] + chr(ord(prefix[-1]) + 1)}
            total = table.execute(f"SELECT total(weight) {where}", span).fetchone()[0]
            rows = table.execute(f"SELECT weight {where} ORDER BY weight DESC LIMIT 5", span).fetchall()
            taken["list"].append(between - began)
            taken["table"].append(time.perf_counter() - between)
            assert abs(mass - total) <= 1e-9 * total
            assert [words.count(word) for word in best] == [weight for (weight,) in rows]
        ours, theirs = (1e6 * statistics.median(taken[name]) for name in ("list", "table"))
        print(
            f"prefix of {size}: list {ours:9.1f} us   table {theirs:9.1f} us   {theirs / ours:6.1f} x",
            flush=True,
        )


def keystrokes(registry, entries, requests):
    """Print the milliseconds of completions by a service without a list and with one."""
    port, choose = free_port(), random.Random(2)
    words, given = [word for word, _ in entries], [{"wordlist": "words"}]
    uses = {
        "no list": {},
        "dictionary": {"dictionary": given},
        "blocklist": {"blocklist": given},
        "no list, one typing error": {"fuzzy": 1},
        "dictionary, one typing error": {"dictionary": given, "fuzzy": 1},
    }
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"GRAMOPHONE_WORDLISTS": folder}  # noqa: TID251 - benchmarks are no part of the service
        options = ["--registry", str(registry), "--port", str(port)]
        server = subprocess.Popen([*GRAMOPHONE, "serve", *options], env=environment, **QUIET)
        try:
            wait_until_ready(port)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                lines = "".join(
                    json.dumps({"text": word, "weight": weight}) + "\n" for word, weight in entries
                )
                began = time.perf_counter()
                client.put("/v1/wordlists/words", content=lines).raise_for_status()
                print(
                    f"stored over HTTP in {time.perf_counter() - began:.1f} s, {len(lines) / 1e6:.0f} MB of lines"
                )
                taken = {name: [] for name in uses}
                for number in range(requests + WARM_UP):
                    body = {"text": f"return the {choose.choice(words)[: choose.randint(1, 4)]}", "limit": 5}
                    for name, fields in uses.items():
                        began = time.perf_counter()
                        client.post("/v1/autocomplete", json=body | fields).raise_for_status()
                        if number >= WARM_UP:
                            taken[name].append(time.perf_counter() - began)
        finally:
            server.terminate()
            server.wait()
    for name, seconds in taken.items():
        cut = statistics.quantiles(seconds, n=100)
        print(f"keystroke, {name:30} p50 {1e3 * cut[49]:7.2f} ms   p99 {1e3 * cut[98]:7.2f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--registry", type=Path, default=None)
    given = parser.parse_args()
    entries = made_up(given.entries)
    with tempfile.TemporaryDirectory() as folder:
        words, seconds = compiled(entries, Path(folder) / "list")
        table, table_s = table_of(entries, Path(folder) / "table")
        for name, took in (("list", seconds), ("table", table_s)):
            size = (Path(folder) / name).stat().st_size / 1e6
            print(f"{name:5} of {given.entries:,} words: {took:5.1f} s, {size:.0f} MB", flush=True)
        choose = random.Random(3)
        prefixes = [choose.choice(entries)[0][:size] for size in (1, 2, 3) for _ in range(60)]
        compare(words, table, prefixes)
        table.close()
    with registry_at(given.registry) as registry:
        train(registry, "ngram", "words", "--set", "tokenizer.kind=word")
        keystrokes(registry, entries, given.requests)


if __name__ == "__main__":
    main()
