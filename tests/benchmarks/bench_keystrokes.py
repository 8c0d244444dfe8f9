"""Typing words: the service beside the short program a user would write, a frequency trie, and presage.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_keystrokes.py [--sentences 60000] [--words 1500] [--rounds 5]

All know the same sentences. Quality, on sentences none of them knows, with five words shown: the share of words among
the first 1, 3 and 5 after their context and 0 to 3 letters; and the share of keys saved when a typist accepts a word,
by one key, as soon as it is shown. Speed, of the servers, each text sent once: replies per second to 16 clients, and
latencies at 16 and at 200 typists who press a key every 200 ms, whether or not they have been answered. presage (the
packages presage and libpresage-dev of Debian, and a compiler) is asked in its own process.
"""

import argparse
import contextlib
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx
from preparation import (
    GRAMOPHONE,
    QUIET,
    data_folder,
    free_port,
    gramophone,
    novels_or_documentation,
    peer,
    wait_until_ready,
)

from service.bench.driver import run_load
from service.bench.plan import ClosedLoop, LoadSettings, OpenLoop, Request, Target
from service.bench.results import summarise_load

peer("kenlm", "ufal.kenlm>=26")
PEERS = Path(__file__).parent / "peers"
SHOWN = 5
PAUSE_S = 0.2
SESSIONS = 200
"""Typists whose keys alternate in the loads."""


def typed_words(sentences, count):
    """Return contexts, each followed by a word of letters, of sentences in a random order."""
    choice, found = random.Random(3), []
    lines = [line.split() for line in sentences]
    while len(found) < count:
        words = choice.choice(lines)
        at = choice.randrange(len(words)) if words else 0
        if at >= 3 and words[at].isalpha():
            found.append((" ".join(words[max(at - 8, 0) : at]) + " ", words[at]))
    return found


def typed_keys(sentences, count):
    """Return the texts of typists' keys, in the order of time: each typist enters sentences letter by letter."""
    choice, lines = random.Random(5), [line for line in sentences if line]
    typists = []
    for _ in range(SESSIONS):
        keys = []
        while len(keys) < count / SESSIONS:
            line = choice.choice(lines)
            keys += [line[:end] for end in range(1, len(line) + 1)]
        typists.append(keys)
    return [(number, keys[at]) for at in range(count // SESSIONS) for number, keys in enumerate(typists)]


def show_quality(name, complete, words):
    """Print how often words are among those shown, and the keys they save."""
    ranks, typed, needed = [], 0, 0
    began = time.perf_counter()
    asked = 0
    for number, (context, word) in enumerate(words):
        letters = number % 4
        if letters < len(word):
            shown = complete(context + word[:letters])
            ranks.append(shown.index(word) if word in shown else SHOWN)
            asked += 1
        typed += len(word) + 1
        for end in range(len(word) + 1):
            asked += 1
            if word in complete(context + word[:end]):
                break
        needed += end + 1
    hits = "  ".join(f"{sum(rank < most for rank in ranks) / len(ranks):6.1%}" for most in (1, 3, 5))
    took = 1e3 * (time.perf_counter() - began) / asked
    print(
        f"{name:16} among 1, 3, 5 {hits}   keys saved {1 - needed / typed:6.1%}   {took:.2f} ms a text",
        flush=True,
    )


def over_http(client, port):
    """Return a function from a text to the words that a server shows."""

    def complete(text):
        reply = client.post(f"http://127.0.0.1:{port}/v1/autocomplete", json={"text": text, "limit": SHOWN})
        return [one["text"] for one in reply.raise_for_status().json()["completions"]]

    return complete


@contextlib.contextmanager
def presage(text, folder):
    """Yield a function from a text to the words that presage shows, or None if it is not installed."""
    program, settings = folder / "presage_lines", Path("/etc/presage.xml")
    if not (shutil.which("text2ngram") and shutil.which("c++") and settings.exists()):
        yield None
        return
    command = ["c++", "-O2", PEERS / "presage_lines.cpp", "-lpresage", "-o", program]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    for n in "123":
        subprocess.run(
            ["text2ngram", "-n", n, "-f", "sqlite", "-a", "-o", folder / "n.db", text], check=True, **QUIET
        )
    configuration = settings.read_text()
    for key, value in {
        "PREDICTORS": "DefaultSmoothedNgramPredictor",
        "LOWERCASE_MODE": "no",
        "ONLINE_LEARNING": "no",
        "SUGGESTIONS": str(SHOWN),
        "REPEAT_SUGGESTIONS": "yes",
        "DBFILENAME": str(folder / "n.db"),
    }.items():
        configuration = re.sub(rf"<{key}>.*?</{key}>", f"<{key}>{value}</{key}>", configuration)
    (folder / "presage.xml").write_text(configuration)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([program, folder / "presage.xml"], **pipes) as running:

        def complete(line):
            running.stdin.write(line + "\n")
            running.stdin.flush()
            return running.stdout.readline().rstrip("\n").split("\t")[:SHOWN]

        yield complete
        running.stdin.close()


def load(port, keys, how, seconds):
    """Send keys under a load; return its summary."""
    bodies = [
        json.dumps(
            {"text": text, "limit": SHOWN} | ({"session": f"typist-{number}"} if number is not None else {})
        )
        for number, text in keys
    ]
    requests = [Request("/v1/autocomplete", body.encode()) for body in bodies]
    terms = LoadSettings(duration_s=seconds, warmup_s=0.5)
    return summarise_load(run_load(Target.parse(f"http://127.0.0.1:{port}"), requests, how, terms))


def show_rates(ports, loads, rounds, seconds):
    """Print replies per second to 16 clients, and their ratio to the short program's: medians of rounds by turns."""
    rates = {(name, what): [] for name in ports for what in loads}
    for _ in range(rounds):
        for what, texts in loads.items():
            for name, port in ports.items():
                rates[name, what].append(load(port, texts, ClosedLoop(16), seconds).achieved_per_s)
    for name in ports:
        for what in loads:
            ratios = [a / b for a, b in zip(rates[name, what], rates["short program", what], strict=True)]
            print(
                f"{name:16} {what:10} {median(rates[name, what]):6,.0f}/s   "
                f"ratio {median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]",
                flush=True,
            )


def show_typists(name, port, keys, seconds):
    """Print latencies of 16 and of 200 typists."""
    for typists in (16, 200):
        paced = load(port, keys, OpenLoop(typists / PAUSE_S), seconds)
        latency, errors = paced.latency_ms, sum(one.count for one in paced.errors)
        print(
            f"{name:16} {typists:3} typists   p50 {latency.p50:.1f} ms, p99 {latency.p99:.1f} ms, {errors} refused",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=60_000)
    parser.add_argument("--words", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    splits = novels_or_documentation(data_folder(), given.sentences)
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        text, arpa = folder / "text.txt", folder / "model.arpa"
        text.write_text("\n".join(splits["train"]))
        options = (
            "--set",
            "tokenizer.kind=word",
            "--set",
            "ngram.order=4",
            "--registry",
            folder / "registry",
        )
        gramophone("train", "ngram", "--name", "words", "--corpus", text, *options)
        gramophone("models", "export-arpa", "words", arpa, "--registry", folder / "registry")
        program = [sys.executable, PEERS / "completions_app.py"]
        serve = [*GRAMOPHONE, "serve", "--registry", folder / "registry", "--port"]
        ports = {name: free_port() for name in ("service", "short program", "frequency trie")}
        commands = [*serve, ports["service"]], [*program, ports["short program"], text, arpa]
        for command in (*commands, [*program, ports["frequency trie"], text]):
            server = subprocess.Popen([*map(str, command)], **QUIET)
            opened.callback(server.wait)
            opened.callback(server.terminate)
        for port in ports.values():
            wait_until_ready(port)
        words = typed_words(splits["test"], given.words)
        client = opened.enter_context(httpx.Client(timeout=30))
        for name, port in ports.items():
            show_quality(name, over_http(client, port), words)
        with presage(text, folder) as complete:
            if complete is None:
                print("presage          not installed: apt-get install presage libpresage-dev g++")
            else:
                show_quality("presage", complete, words)
        keys, contexts = typed_keys(splits["test"], 300_000), typed_words(splits["test"], 100_000)
        unrelated = [context + word[: number % 4] for number, (context, word) in enumerate(contexts)]
        loads = {
            "unrelated": [(None, text) for text in unrelated],
            "typed": [(None, text) for _, text in keys],
        }
        show_rates(ports, loads, given.rounds, given.seconds)
        for name, port in ports.items():
            own = keys if name == "service" else loads["typed"]  # the others know no sessions
            show_typists(name, port, own, 3 * given.seconds)


if __name__ == "__main__":
    main()
