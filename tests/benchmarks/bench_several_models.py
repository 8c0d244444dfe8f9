"""Two models in one request, mixed by words: keystrokes saved beside the right model for each sentence, and latency.

    python tests/benchmarks/bench_several_models.py [--texts ENGLISH GERMAN] [--test ENGLISH GERMAN] [--sentences 100]

An n-gram model of pieces learns from the first text and one of words from the second; by default, the novels (with
GRAMOPHONE_DATA) and Python's documentation. Their test sentences alternate in one text. A word is accepted as soon as
three completions have it, which is one key. The right model of each sentence reads either the same text or this
sentence alone. Then the time of a keystroke with both models, in pairs with the sum of the times of each.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
from preparation import data_folder, leave_out, read_lines, registry_at, train

from models.calls import run_to_completion
from models.prefix_cache import NextTokenCache
from models.scoring.model_weights import WeightedModel
from service.local.ask import UNLIMITED, load_published
from service.operations.autocomplete import AutocompleteRequest, autocomplete
from training.progress import Progress
from training.texts import read_default_corpus

NAMES = ("first", "second")
TOKENIZERS = (
    ("tokenizer.kind=unigram", "tokenizer.vocab_size=8000"),
    ("tokenizer.kind=word", r"tokenizer.pattern=\w+|[^\w\s]"),
)
CONTEXT_CHARS = 400
CACHE_BYTES = 1 << 26


def default_texts(registry):
    """Write training and test sentences of the novels and of Python's documentation; return the files."""
    data = data_folder() or leave_out("it needs two texts: --texts and --test, or GRAMOPHONE_DATA")
    manual = [part.sentences for part in read_default_corpus(Progress())]
    novels = [
        read_lines(data / "novels" / f"novels.{part}.txt.xz")[: len(manual[0])] for part in ("train", "test")
    ]
    found = []
    for part, several in ("train", (novels[0], manual[0])), ("test", (novels[1], manual[2])):
        for name, lines in zip(NAMES, several, strict=True):
            path = registry / f"{name}.{part}.txt"
            path.write_text("\n".join(lines) + "\n")
            found.append(path)
    return found[:2], found[2:]


def load(registry, name):
    """Load a model with a cache of next-token distributions, as the service does, and build what requests need."""
    loaded = load_published(registry, name, "cpu", "auto")
    loaded = dataclasses.replace(loaded, next_token_cache=NextTokenCache(CACHE_BYTES))
    complete([WeightedModel(loaded), WeightedModel(loaded)], "")
    return loaded


def complete(models, text):
    """Return three completions of a text."""
    return run_to_completion(autocomplete(models, AutocompleteRequest(text=text, limit=3), UNLIMITED))


def keys_of(models, context, sentence):
    """Return the number of keys to type a sentence after a context, one for each accepted word."""
    keys, text = 0, context
    for word in sentence.split(" "):
        core = word.rstrip(".,;:!?)")
        for typed in range(len(word) + 1):
            reply = complete(models, text + word[:typed])
            texts = [(text + word[:typed])[: one.start] + one.text for one in reply.completions]
            if typed < len(core) and text + core in texts:
                keys += typed + 1 + len(word) - len(core) + (len(word) > len(core))
                break
        else:
            keys += len(word) + 1
        text += f"{word} "
    return keys


def measure_savings(loaded, tests, sentences):
    """Print the keystrokes saved in each text."""
    kinds = ("right model, same text", "right model, sentence alone", "both models, same text")
    totals = np.zeros((2, 1 + len(kinds)))
    context = ""
    both = [WeightedModel(one) for one in loaded]
    for number in range(sentences):
        for text in range(2):
            sentence = tests[text][number]
            before, right = context[-CONTEXT_CHARS:], [WeightedModel(loaded[text])]
            keys = [
                keys_of(right, before, sentence),
                keys_of(right, "", sentence),
                keys_of(both, before, sentence),
            ]
            totals[text] += [len(sentence) + 1, *keys]
            context += f"{sentence} "
    for name, (characters, *keys) in zip(NAMES, totals, strict=True):
        shown = (
            f"{kind} {100 * (1 - own / characters):.1f} %" for kind, own in zip(kinds, keys, strict=True)
        )
        print(f"{name} text, keystrokes saved: {', '.join(shown)}")


def measure_latency(registry, tests, sentences):
    """Print the time of a keystroke that begins a word, with both models and with each; none is cached."""
    several = {"both": NAMES, "first": NAMES[:1], "second": NAMES[1:]}
    models = {
        kind: [WeightedModel(load(registry, name)) for name in names] for kind, names in several.items()
    }
    times = {kind: [] for kind in models}
    begun = [
        sentence.split(" ")[:words] for test in tests for sentence in test[:sentences] for words in (5, 6)
    ]
    for words in begun:
        for kind, weighted in models.items():
            start = time.perf_counter()
            complete(weighted, f"{' '.join(words)} ")
            times[kind].append(time.perf_counter() - start)
    low, middle, high = np.percentile(
        np.divide(times["both"], np.add(times["first"], times["second"])), [25, 50, 75]
    )
    print(
        f"first letter of a word, {len(begun)} texts: both models {np.median(times['both']) * 1e3:.2f} ms, "
        f"{middle:.2f} times ({low:.2f} to {high:.2f}) the sum of the times of each"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, nargs=2)
    parser.add_argument("--test", type=Path, nargs=2)
    parser.add_argument("--registry", type=Path)
    parser.add_argument("--sentences", type=int, default=100, help="of each text")
    given = parser.parse_args()
    if (given.texts is None) != (given.test is None):
        sys.exit("give both --texts and --test, or neither")
    with registry_at(given.registry) as registry:
        texts, tests = (given.texts, given.test) if given.texts else default_texts(registry)
        for name, text, tokenizer in zip(NAMES, texts, TOKENIZERS, strict=True):
            train(registry, "ngram", name, "--corpus", text, *(f"--set={key}" for key in tokenizer))
        loaded = [load(registry, name) for name in NAMES]
        lines = [path.read_text().splitlines() for path in tests]
        sentences = min(given.sentences, *map(len, lines))
        measure_savings(loaded, lines, sentences)
        measure_latency(registry, lines, sentences)


if __name__ == "__main__":
    main()
