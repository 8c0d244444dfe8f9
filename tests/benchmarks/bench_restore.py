"""Capitals and punctuation restored in held-out novels, beside each word's most frequent form.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_restore.py [--lines 1800] [--registry FOLDER]

`gramophone train --for restore` makes the model from 90 novels; lines of five others, from 60 places, lose their
capitals and punctuation. They are restored as lines, of which each is a sentence, as texts of one sentence whose end
is unknown, and as texts of ten. The baseline writes each word in its most frequent form, with a capital and a full
stop where a line begins and ends. Told: F1 of words with capitals and of marks, and words per second of CPU time.
"""

import argparse
import re
import time
from collections import Counter
from pathlib import Path

from preparation import needed_data, read_lines, registry_at, train

from models.calls import run_to_completion
from models.restoration import Restorer, restore
from models.word_forms import MARKS
from service.local.ask import load_published

PLACES = 60
WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
KINDS = {"capitals": "", "full stop, comma": ".,", **{mark: mark for mark in MARKS}}


def written(line):
    """Return the words of a line, each with the mark after it."""
    found = [*WORD.finditer(line)]
    ends = [match.start() for match in found[1:]] + [len(line)]
    return [
        (match[0], next((mark for mark in line[match.end() : end] if mark in MARKS), ""))
        for match, end in zip(found, ends, strict=True)
    ]


def baseline(line, forms):
    """Write each word in its most frequent form, with a capital at first and a full stop at last."""
    words = [[forms.get(word.lower(), [word.lower()])[0], ""] for word, _ in line]
    words[0][0] = words[0][0][:1].upper() + words[0][0][1:]
    words[-1][1] = "."
    return words


def f1(right, found, kind):
    """Return F1 of a kind of mark, or of capitals."""
    counts = Counter()
    marks = KINDS[kind]
    for (word, mark), (own, own_mark) in zip(right, found, strict=True):
        for one in marks or [""]:
            wanted = mark == one if one else word != word.lower()
            got = own_mark == one if one else own != own.lower()
            counts[wanted, got] += 1
    hits = 2 * counts[True, True]
    return hits / max(1, hits + counts[True, False] + counts[False, True])


def report(title, right, found, note=""):
    figures = " ".join(f"{f1(right, found, kind):8.3f}" for kind in KINDS)
    print(f"{title:36s} {figures} {note}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1800)
    parser.add_argument("--registry", type=Path)
    options = parser.parse_args()
    novels = needed_data() / "novels"
    lines = [line for line in map(written, read_lines(novels / "novels.test.txt.xz")) if line]
    step, size = len(lines) // PLACES, options.lines // PLACES
    lines = [line for place in range(PLACES) for line in lines[place * step : place * step + size]]
    right = [word for line in lines for word in line]
    plain = [" ".join(word.lower() for word, _ in line) for line in lines]
    with registry_at(options.registry) as registry:
        corpus = f"--corpus={novels / 'novels.train.txt.xz'}"
        started = time.perf_counter()
        train(registry, "--for=restore", "restore", corpus, f"--valid={novels / 'novels.valid.txt.xz'}")
        print(
            f"{time.perf_counter() - started:.0f} s of training; {len(right):,} words of {len(lines):,} lines"
        )
        restorer = load_published(registry, "restore", "cpu", "auto").derived(Restorer.of)
    print(f"{'F1':36s} " + " ".join(f"{kind[:8]:>8s}" for kind in KINDS))
    report(
        "most frequent forms, lines known",
        right,
        [word for line in lines for word in baseline(line, restorer.written.forms)],
    )
    tens = ["\n".join(plain[start : start + 10]) for start in range(0, len(plain), 10)]
    for title, texts, one_per_line in (
        ("lines are sentences", tens, True),
        ("one sentence, unknown end", plain, False),
        ("ten sentences, unknown ends", tens, False),
    ):
        started = time.process_time()
        found = [run_to_completion(restore(restorer, text, one_per_line=one_per_line)) for text in texts]
        seconds = time.process_time() - started
        pairs = [(word.text, word.mark) for text in found for word in text]
        report(title, right, pairs, f"{len(right) / seconds:,.0f} words/s")


if __name__ == "__main__":
    main()
