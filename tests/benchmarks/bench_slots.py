"""Cities that the model has never seen: perplexity, recall and saved keystrokes with the class `$city` and without it.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_slots.py [--registry FOLDER]

The references of the flights lists are divided by the cities that they name. Models learn from sentences of which no
city is among a quarter of all; the others are the test text. With the class, the list of the training text's cities is
given to the training and the list of all cities to the evaluation, except on held-out sentences with seen cities only.
Words, and pieces; n-gram models of order 5, and LSTMs of 256 units with --lstm. A plain model's perplexity counts only
that a city is unknown, not which one it is. Recall is the share of the test text's unseen cities (without the class: of
their first words) among the three best completions after the first letters. At the end, the time of scoring with
members in the request.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from preparation import needed_data, registry_at, train

from models.calls import run_to_completion
from models.scoring.model_weights import WeightedModel
from service.hosting.loaded_model import LoadedModel
from service.local.ask import UNLIMITED, load_published
from service.operations.autocomplete import AutocompleteRequest, autocomplete
from service.operations.score import ScoreItem, ScoreRequest, score
from training.commands import run_evaluate, run_evaluate_autocomplete

CITIES = (
    """
boston, san francisco, denver, atlanta, pittsburgh, dallas, baltimore, philadelphia, washington d c, washington,
oakland, new york city, new york, milwaukee, miami, chicago, las vegas, toronto, charlotte, fort worth, san diego,
phoenix, newark, orlando, kansas city, houston, indianapolis, seattle, los angeles, salt lake city, saint petersburg,
san jose, saint louis, long beach, saint paul, cleveland, memphis, cincinnati, columbus, detroit, minneapolis, montreal,
nashville, ontario, tampa, tacoma, burbank, westchester county, love field
""".replace("\n", " ")
    .strip()
    .split(", ")
)
NAMED_TOGETHER = (("washington", "washington d c"), ("new york", "new york city"))
CITY = re.compile(r"\b(" + "|".join(sorted(CITIES, key=len, reverse=True)) + r")\b")


def divide(sentences):
    """Return training, validation and test sentences, and the cities that only the test sentences name."""
    order = [city for city, _ in Counter(c for s in sentences for c in CITY.findall(s)).most_common()]
    unseen = set(order[3::4])
    for group in NAMED_TOGETHER:
        unseen |= set(group) if unseen & set(group) else set()
    test = [s for s in sentences if unseen & set(CITY.findall(s))]
    seen = [s for s in sentences if not unseen & set(CITY.findall(s))]
    return {"train": [s for i, s in enumerate(seen) if i % 10], "valid": seen[::10], "test": test}, unseen


def recall(loaded: LoadedModel, sentences, unseen, letters, *, whole):
    """Return the share of unseen cities among the three best completions after some letters."""
    hits = []
    for sentence in sentences:
        for found in CITY.finditer(sentence):
            if found.group() in unseen:
                target = found.group() if whole else found.group().split()[0]
                typed = sentence[: found.start() + letters]
                request = AutocompleteRequest(text=typed, limit=3)
                reply = run_to_completion(autocomplete([WeightedModel(loaded)], request, UNLIMITED))
                hits.append(any(c.text == target for c in reply.completions))
    return float(np.mean(hits))


def time_scoring(loaded: LoadedModel, sentences, members):
    """Print the time of scoring with and without members, and of the first request with new ones."""
    request = ScoreRequest(texts=list(sentences[:100]))
    items = [ScoreItem(f"texts[{index}]", text) for index, text in enumerate(request.texts)]
    begun = time.perf_counter()
    slotted = loaded.with_slots({"city": members})
    first = time.perf_counter() - begun
    times = {"plain": [], "members": []}
    for _ in range(20):
        for name, model in (("plain", loaded), ("members", slotted)):
            begun = time.perf_counter()
            run_to_completion(score(model, items, request, UNLIMITED))
            times[name].append(time.perf_counter() - begun)
    ratios = np.array(times["members"]) / np.array(times["plain"])
    low, high = np.quantile(ratios, [0.1, 0.9])
    print(
        f"100 texts with {len(members):,} members: {np.median(times['members']) * 1e3:.2f} ms, "
        f"{np.median(ratios):.2f} times ({low:.2f} to {high:.2f}) that of the members of the training text; "
        f"first request {first * 1e3:.1f} ms more"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registry", type=Path)
    parser.add_argument("--sentences", type=int, default=300, help="test sentences whose words are typed")
    parser.add_argument("--lstm", action="store_true", help="also train LSTMs, 30 passes each")
    options = parser.parse_args()
    lists = json.loads((needed_data() / "nbest" / "flights.json").read_text())
    texts, unseen = divide(list(dict.fromkeys(entry["output"] for entry in lists)))
    with registry_at(options.registry) as registry:
        texts |= {"typed": texts["test"][: options.sentences]}
        texts |= {"known": sorted({*CITIES} - unseen), "all": CITIES}
        paths = {name: registry / f"{name}.txt" for name in texts}
        for name, path in paths.items():
            path.write_text("\n".join(texts[name]) + "\n")
        corpora = [f"--corpus={paths['train']}", f"--valid={paths['valid']}"]
        kinds = {
            "words": ["tokenizer.kind=word"],
            "pieces": ["tokenizer.kind=unigram", "tokenizer.vocab_size=500"],
        }
        print(f"{len(unseen)} of {len(CITIES)} cities unseen, {len(texts['train'])} sentences to learn from")
        for recipe, more in (
            ("ngram", []),
            *([("lstm", ["train.epochs=30", "neural.hidden_size=256"])] * options.lstm),
        ):
            for kind, keys in kinds.items():
                for name, own in (("plain", []), ("slots", [f"tokenizer.slots.city={paths['known']}"])):
                    title = f"{recipe}-{kind}-{name}"
                    settings = [part for key in (*keys, *own, *more) for part in ("--set", key)]
                    train(registry, recipe, title, *corpora, *settings)
                    members = {"city": CITIES} if own else {}
                    common = {"registry": registry, "device": "cpu", "unit": "line"}
                    per_word = [
                        run_evaluate(
                            title, corpus=[paths[text]], context="sentence", window=1, slots=given, **common
                        )["word_perplexity"]
                        for text, given in (("test", members), ("valid", {}))
                    ]
                    typed = run_evaluate_autocomplete(title, corpus=[paths["typed"]], slots=members, **common)
                    loaded = load_published(registry, title, "cpu", "auto").with_slots(members)
                    found = [recall(loaded, texts["typed"], unseen, n, whole=bool(own)) for n in range(3)]
                    print(
                        f"{title:20} perplexity per word {per_word[0]:6.2f}, {per_word[1]:5.2f} with seen cities only, "
                        "keystroke savings "
                        f"{1 - typed['keys_pressed']['top_3'] / typed['keys']:.1%}, recall after 0, 1, 2 letters "
                        + ", ".join(f"{share:.1%}" for share in found)
                    )
        loaded = load_published(registry, "ngram-words-slots", "cpu", "auto")
        time_scoring(loaded, texts["test"], CITIES)
        time_scoring(loaded, texts["test"], [*CITIES, *(f"town {n}" for n in range(5000))])


if __name__ == "__main__":
    sys.exit(main())
