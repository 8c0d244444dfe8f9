"""What keys, typing errors and the text around the caret are worth to completions.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_typing.py [--words 2000] [--kinds word,unigram]

N-gram models of order 5 of the novels (without the public data: of Python's documentation) complete words of held-out
lines in their context:

- touches: normal noise of 0.35 key widths and heights around the middle of each key of QWERTY; the typed text has the
  nearest letters. `keys` has the touches, `fuzzy` only the text; the baseline is the most frequent word with the fewest
  edits. A number pad has three or four letters a key.
- one typing error within a word of at least five letters: the word is among the first five.
- text after the caret: keys saved if a word is taken as soon as it is among the first one or three. The same if no
  completion of a word is shown twice.
- lines before: the same for the first three words of lines, with a cache that has read the 60 lines before: one of
  decaying counts or, with --mixture, that of a published model, such as one of `gramophone train cpu-30min`.
- misspellings: of the first five completions of each beginning, the share of forms that only made errors have put into
  the training text, one word in a hundred, with and without what training has found to be misspelt.

Times are those of a keystroke in one process, with the context's reading cached as in the service.
"""

import argparse
import dataclasses
import random
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import numpy as np
from bench_completion import lines_of, trained
from preparation import data_folder
from rapidfuzz.distance import OSA
from rapidfuzz.process import cdist

from models.cache.config import CacheConfig
from models.cache.model import CacheModel
from models.calls import run_to_completion
from models.completion.history import CompletionHistory
from models.completion.keys import key_centres, letters_of_touch
from models.completion.ranked import NO_EVIDENCE, RankingSettings, TypingEvidence
from models.completion.ranking import rank_completions
from models.misspellings import Misspellings
from models.prefix_cache import NextTokenCache
from models.scoring.model_weights import WeightedModel
from models.text_model import Limits, TextModel
from models.words import word_pattern
from service.local.ask import load_published

NOISE = 0.35
SHARE_MISTYPED = 0.01
LINES_BEFORE = 60
COUNTS = CacheConfig(kind="unigram", window=10_000, half_life=300.0, weight=0.1, prior=10.0)
PAD = ("abc", "def", "ghi", "jkl", "mno", "pqrs", "tuv", "wxyz")
LIMITS = Limits(max_texts=1, max_tokens_per_sequence=1 << 20, max_new_tokens=1)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Typist:
    """Completes words with a model; keeps the times by what it was told."""

    def __init__(self, loaded):
        self._models = [WeightedModel(loaded)]
        self.times_s = defaultdict(list)

    def complete(self, kind, context, typed, evidence=NO_EVIDENCE, shown=None, limit=5, **settings):
        text = f"{context} {typed}" if context else typed
        settings = RankingSettings(limit=limit, **settings)
        work = rank_completions(self._models, text, settings, LIMITS, evidence=evidence, shown=shown)
        begun_s = time.perf_counter()
        found = run_to_completion(work).completions
        self.times_s[kind].append(time.perf_counter() - begun_s)
        return [one.text for one in found]


def touched(word, rng):
    """Return the places of touches, and the letters that are nearest to them."""
    centres = key_centres("qwerty")
    places = np.array([centres[letter] for letter in word]) + rng.normal(0, NOISE, (len(word), 2))
    keys = np.array(list(centres.values()))
    nearest = ((keys - places[:, None]) ** 2).sum(axis=2).argmin(axis=1)
    return places.tolist(), "".join(list(centres)[index] for index in nearest)


def report_touches(typist, places, counts, rng):
    words = list(counts)
    frequencies, hits = np.array([counts[word] for word in words]), Counter()
    for context, word, _ in places:
        touches, typed = touched(word, rng)
        evidence = TypingEvidence(keys=[letters_of_touch(*place, "qwerty") for place in touches])
        edits = cdist([typed], words, scorer=OSA.distance)[0]
        near = np.flatnonzero(edits == edits.min())
        pad = [next(key for key in PAD if letter in key) for letter in word]
        on_pad = TypingEvidence(keys=[dict.fromkeys(key, 1 / len(key)) for key in pad])
        told = {
            "keys": typist.complete("keys", context, typed, evidence),
            "number pad": typist.complete("number pad", context, "".join(key[0] for key in pad), on_pad),
            "fuzzy 2": typist.complete("fuzzy 2", context, typed, fuzzy=2),
            "baseline": [words[near[frequencies[near].argmax()]]],
            "typed text": [typed],
        }
        hits.update(kind for kind, texts in told.items() if texts[:1] == [word])
    for kind in ("keys", "number pad", "fuzzy 2", "baseline", "typed text"):
        print(
            f"  intended word first, {kind:12} {100 * hits[kind] / len(places):6.1f} %",
            flush=True,
        )


def mistyped(word, rng):
    """Return a word with one letter within it replaced, added, left out or swapped with the next."""
    while True:
        at, letter = int(rng.integers(1, len(word) - 1)), LETTERS[rng.integers(26)]
        ends = (
            letter + word[at + 1 :],
            letter + word[at:],
            word[at + 1 :],
            word[at + 1] + word[at] + word[at + 2 :],
        )
        if (typed := word[:at] + ends[rng.integers(4)]) != word:
            return typed


def report_errors(typist, places, rng):
    long = [(context, word) for context, word, _ in places if len(word) >= 5][:300]
    hits = sum(
        word in typist.complete("fuzzy 1", context, mistyped(word, rng), fuzzy=1) for context, word in long
    )
    print(f"  one typing error, word among five: {hits} of {len(long)}", flush=True)


def keys_needed(typist, kind, context, word, shown, evidence=NO_EVIDENCE, history=None):
    """Return the keys to write a word, which is taken as soon as it is shown; with a history nothing is shown twice."""
    for size in range(len(word)):
        found = typist.complete(kind, context, word[:size], evidence, history, limit=max(shown, 3))[:shown]
        if word in found:
            return size + 1
        if history is not None:
            history.add(f"{context} {word[:size]}", len(context) + 1, found)
    return len(word) + 1


def report_keys_saved(typist, places):
    keys = sum(len(word) + 1 for _, word, _ in places)
    for shown in (1, 3):
        pressed = Counter()
        for context, word, rest in places:
            needed = partial(keys_needed, typist, context=context, word=word, shown=shown)
            pressed["before the caret"] += needed("before the caret")
            pressed["with both sides"] += needed("both sides", evidence=TypingEvidence(after=f" {rest}"))
            pressed["nothing shown twice"] += needed("before the caret", history=CompletionHistory())
        told = [f"{100 * (1 - number / keys):.2f} % {name}" for name, number in pressed.items()]
        print(f"  keys saved, {shown} shown: {', '.join(told)}", flush=True)


def report_lines_before(loaded, lines):
    """Print the keys saved in the first words of lines by a model that reads the lines before them."""
    typist = Typist(dataclasses.replace(loaded, next_token_cache=NextTokenCache(256 << 20)))
    numbers = random.Random(1).sample(range(LINES_BEFORE, len(lines)), min(100, len(lines) // 2))
    evidence = {at: TypingEvidence(before="\n".join(lines[at - LINES_BEFORE : at])) for at in numbers}
    places = [(at, lines[at].split()[:3], number) for at in numbers for number in range(3)]
    places = [
        (at, words, number) for at, words, number in places if number < len(words) and words[number].isalpha()
    ]
    keys = sum(len(words[number]) + 1 for _, words, number in places)
    for shown in (1, 3):
        pressed = Counter()
        for at, words, number in places:
            needed = partial(keys_needed, typist, "", " ".join(words[:number]), words[number], shown)
            pressed["the line alone"] += needed()
            pressed["lines before"] += needed(evidence[at])
        told = [f"{100 * (1 - number / keys):.2f} % {name}" for name, number in pressed.items()]
        print(f"  keys saved in first words, {shown} shown: {', '.join(told)}", flush=True)


def spoiled(lines, rng):
    """Yield lines with a typing error in one of a hundred words of four letters or more."""
    for line in lines:
        words = line.split()
        for at in np.flatnonzero(rng.random(len(words)) < SHARE_MISTYPED):
            if len(words[at]) >= 4 and words[at].isalpha():
                words[at] = mistyped(words[at], rng)
        yield " ".join(words)


def report_misspellings(kind, lines, places, rng):
    """Train on a text with typing errors, and print how many of the completions are such."""
    train = list(spoiled(lines, rng))
    right = {word.lower() for line in lines for word in word_pattern().findall(line)}
    tokenizer, model = trained(kind, train)
    found = tokenizer.misspellings
    for name, misspellings in (("all forms", Misspellings()), ("without misspellings", found)):
        tokenizer.misspellings = misspellings
        typist = Typist(TextModel(f"{kind}@1", model, tokenizer, next_token_cache=NextTokenCache(64 << 20)))
        offered = [
            text
            for context, word, _ in places
            for size in range(1, len(word))
            for text in typist.complete("", context, word[:size])
        ]
        wrong = sum(text.isalpha() and text.lower() not in right for text in offered)
        print(
            f"  {100 * wrong / len(offered):.2f} % of {len(offered)} completions misspelt, {name}", flush=True
        )
    hidden = [form for form in found.words if form in right]
    print(f"  {len(found.words)} forms hidden, of which {len(hidden)} are words of the text", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--words", type=int, default=2000, help="words typed with touches")
    parser.add_argument("--kinds", default="word,unigram", help="tokens of the models")
    parser.add_argument(
        "--mixture", help="REGISTRY:MODEL of a published mixture with a cache, for lines before alone"
    )
    options = parser.parse_args()
    data = data_folder()
    train, test = (lines_of(data, split) for split in ("train", "test"))
    if options.mixture:
        registry, _, model = options.mixture.rpartition(":")
        report_lines_before(load_published(Path(registry), model, "cpu", "auto"), test)
        return
    counts = Counter(word for line in train for word in line.split() if word.isalpha())
    places = [
        (" ".join(words[:number]), word, " ".join(words[number + 1 :]))
        for words in map(str.split, test)
        for number, word in enumerate(words)
        if len(word) >= 3 and counts[word] and set(word) <= set(LETTERS)
    ]
    random.Random(1).shuffle(places)
    places = places[: options.words]
    for kind in options.kinds.split(","):
        tokenizer, model = trained(kind, train)
        loaded = dataclasses.replace(
            TextModel(f"{kind}@1", model, tokenizer),
            next_token_cache=NextTokenCache(64 << 20),
        )
        typist, rng = Typist(loaded), np.random.default_rng(1)
        print(f"{kind}: {len(places)} words", flush=True)
        report_touches(typist, places, counts, rng)
        report_errors(typist, places, rng)
        inner = [one for one in places if one[0] and len(one[2].split()) >= 3][: options.words // 4]
        report_keys_saved(typist, inner)
        for name, times_s in typist.times_s.items():
            p50, p99 = (1e3 * np.percentile(times_s, q) for q in (50, 99))
            print(
                f"  a keystroke, {name:16} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms",
                flush=True,
            )
        cached = TextModel(f"{kind}@1", CacheModel(model, COUNTS), tokenizer)
        report_lines_before(cached, test)
        report_misspellings(kind, train, places[: options.words // 2], rng)


if __name__ == "__main__":
    main()
