"""Words as people write them: false alarms and misspellings by case, place and Unicode form.

    python tests/benchmarks/bench_words.py [--registry FOLDER] [--starts 3000] [--words 300]

Three models learn from Python's documentation: of words and punctuation, of pieces with `--for check`, and the default
mixture. Held-out sentences are cut before a word that is known in small letters, which then has a capital: every
issue at it is a false alarm. Misspellings of codespell stand in for words of the sentences: in small letters, at the
start, in capitals, after "! ", in brackets and beside a slash. Printed is the share of those found in small letters.
"""

import argparse
import re
import sys
from pathlib import Path

from preparation import peer, registry_at, train

from models.calls import run_to_completion
from models.checking.checker import Checker, find_issues
from models.checking.error_model import CheckSettings
from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import open_registry
from service.bench.workloads import default_texts, shuffled
from training.evaluation.spelling import read_misspellings

MODELS = {
    "words": ("ngram", "--set", r"tokenizer.pattern=\w+(?:-\w+)*|[^\w\s]"),
    "pieces": ("--for=check",),
    "mixture": ("mixture",),
}
PLACES = {
    "lower": "{before}{word}{after}",
    "start": "{capital}{after}",
    "capitals": "{before}{upper}{after}",
    "after !": "Stop! {capital}{after}",
    "brackets": "{before}({word}){after}",
    "slash": "{before}{word}/value{after}",
    "slash before": "{before}value/{word}{after}",
}
_CONTRACTION = re.compile(r"\b[A-Za-z]+['\u2019](?:t|s|re|ll|ve|d|m)\b")
HOSTS = ["example.org", "exmaple.com", "docs.pyhton.org", "a.b.c"]
ADDRESSES = (
    """
https://{host}/{word}/{wrong}.html?q={wrong}#{wrong}|www.{host}/{wrong}|jonh.{wrong}@{host}|src/{wrong}/{word}.py|~/{wrong}
/usr/{wrong}/{word}|./{wrong}/{word}|C:\\{wrong}\\{word}|{wrong}_{word}|max{Wrong}Size|{Word}{Wrong}|{word}.{wrong}.{word}
--{word}-{wrong}|--{wrong}={word}|{wrong}()|${wrong}|@{wrong}|9f86d0818{wrong}|3fa85f64-5717-4562-b3fc-2c96|12 kB|20 °C
""".strip()
    .replace("\n", "|")
    .split("|")
)


class Checks:
    """A model and its checker."""

    def __init__(self, registry, name):
        store = open_registry(registry)
        self.checkpoint = load_checkpoint(store.fetch(store.resolve(name)))
        self.checker = Checker(self.checkpoint.tokenizer)

    def issues(self, text):
        """Return the issues of a line."""
        found = []
        for work in self.checker.rescore_all(
            self.checkpoint.model, list(self.checker.sentences(text)), CheckSettings()
        ):
            batch = run_to_completion(work)
            tokens = self.checkpoint.tokenizer.vocabulary.tokens
            found += run_to_completion(find_issues(batch, tokens, threshold=0.5, max_suggestions=1))
        return found

    def marks(self, text, start, end):
        """Return the issues within a part of a line."""
        return [issue for issue in self.issues(text) if issue.start < end and issue.end > start]

    def knows(self, word):
        """Tell whether a word is one known token."""
        return all(one.known for one in self.checker.splitter.sentence(word).words)


def placed(place, before, word, after):
    """Return a text with a word in a place, and the word's start and end."""
    form = {"start": word.capitalize(), "after !": word.capitalize(), "capitals": word.upper()}.get(
        place, word
    )
    text = PLACES[place].format(before=before, word=word, capital=form, upper=form, after=after)
    start = PLACES[place].format(before=before, word="\0", capital="\0", upper="\0", after=after).index("\0")
    return text, start, start + len(form)


def main():
    """Measure each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--registry", type=Path, help="folder of the trained models; default: a temporary one"
    )
    parser.add_argument("--starts", type=int, default=3000)
    parser.add_argument("--words", type=int, default=300)
    parser.add_argument("--show", type=int, default=0, help="number of false alarms and misses to print")
    options = parser.parse_args()
    dictionary = Path(peer("codespell_lib", "codespell==2.4.3").__file__).parent / "data" / "dictionary.txt"
    wrong = {right: words for right, words in read_misspellings(dictionary).items() if right.isalpha()}
    places = [
        (text[: one.start()], one.group(), text[one.end() :])
        for text in default_texts()
        for one in re.finditer(r"(?<![^\s])[a-z]{3,}(?![^\s,.])", text)
    ]
    places = shuffled(places, seed=1)
    with registry_at(options.registry) as registry:
        for name, recipe in MODELS.items():
            train(registry, recipe[0], name, *recipe[1:])
            measure(name, Checks(registry, name), places, wrong, options)


def measure(name, checks, places, wrong, options):
    """Print the figures of a model."""
    shown = []
    known = [place for place in places if checks.knows(place[1])]
    alarms = 0
    for before, word, after in known[: options.starts]:
        text, start, end = placed("start", before, word, after)
        if found := checks.marks(text, start, end):
            alarms += 1
            shown.append((text[:60], found[0].suggestions[0].text))
    print(f"{name}: {alarms} false alarms at {min(len(known), options.starts)} starts", flush=True)
    for place, texts in {
        "\u2019": _apostrophes(options.words),
        "address": _addresses(wrong, options.words),
    }.items():
        found = [
            (text, issue)
            for text in texts
            for issue in checks.issues(text[0])
            if text[1] <= issue.start < text[2]
        ]
        shown += [(text[0], issue.suggestions[0].text) for text, issue in found]
        print(f"{name}: {place}: {len(found)} false alarms in {len(texts)}", flush=True)
    found, misses = dict.fromkeys(PLACES, 0), []
    pairs = [
        (place, word)
        for place in known
        if len(place[1]) > 4
        for word in wrong.get(place[1], ())[:1]
        if word.isalpha()
    ]
    for (before, right, after), word in pairs[: options.words]:
        if not checks.marks(*placed("lower", before, word, after)):
            continue
        for place in PLACES:
            text, start, end = placed(place, before, word, after)
            marks = checks.marks(text, start, end)
            found[place] += bool(marks)
            if not marks:
                misses.append((place, text[:60], right))
    shares = ", ".join(f"{place} {count / max(found['lower'], 1):.1%}" for place, count in found.items())
    print(f"{name}: {found['lower']} of {min(len(pairs), options.words)} found; {shares}", flush=True)
    for line in shown[: options.show] + misses[: options.show]:
        print("   ", *line)


def _apostrophes(count):
    lines = [(text, *one.span()) for text in default_texts() for one in _CONTRACTION.finditer(text)]
    return [(text.replace("'", "\u2019"), start, end) for text, start, end in shuffled(lines, seed=2)[:count]]


def _addresses(wrong, count):
    pairs = shuffled([(right, words[0]) for right, words in wrong.items() if words[0].isalpha()], seed=3)
    texts = []
    for number, (word, typo) in enumerate(pairs[:count]):
        address = ADDRESSES[number % len(ADDRESSES)].format(
            host=HOSTS[number % len(HOSTS)],
            word=word,
            wrong=typo,
            Word=word.capitalize(),
            Wrong=typo.capitalize(),
        )
        texts.append((f"See {address} for the value.", 4, 4 + len(address)))
    return texts


if __name__ == "__main__":
    sys.exit(main())
