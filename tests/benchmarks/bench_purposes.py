"""What `gramophone train --for` chooses, beside other tokenizers, at each use of a model.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_purposes.py [--minutes 5] [--sentences 100000]

Two texts: sentences of novels as they are written, and the same lower-cased without punctuation, as recognisers write.
For each, mixtures with the tokenizers that the purposes choose and with words split at spaces. Bits per byte and
keystrokes saved by three completions on held-out text, F0.5 of detecting misspellings that people made (codespell's
dictionary), and word error rate of recognised speech, re-ranked with weights by cross-fitting.
"""

import argparse
import re
from pathlib import Path

from preparation import gramophone_json, needed_data, novels_or_documentation, peer, registry_at, train

from training.purpose import choose_recipe

PURPOSES = ("autocomplete", "rerank", "check", "score")
HELD_OUT_LINES = 5000


def as_recognised(lines):
    """Return lines in lower case without punctuation."""
    stripped = (re.sub(r"[^\w\s']", " ", line.lower()).split() for line in lines)
    return [" ".join(words) for words in stripped if words]


def choices_for(corpus):
    """Return tokenizer settings by the purposes that choose them, and words split at spaces."""
    choices = {}
    for purpose in PURPOSES:
        chosen = choose_recipe(purpose, [corpus]).settings
        keys = tuple(
            f"{key}={value}" for key, value in sorted(chosen.items()) if key.startswith("tokenizer.")
        )
        choices.setdefault(keys, []).append(purpose)
    choices.setdefault(("tokenizer.kind=word",), ["no purpose"])
    return {", ".join(purposes): keys for keys, purposes in choices.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--registry", type=Path)
    parser.add_argument("--minutes", type=float, default=5, help="of training each network")
    parser.add_argument("--sentences", type=int, default=100_000, help="to train on")
    given = parser.parse_args()
    misspellings = Path(peer("codespell_lib", "codespell==2.4.3").__file__).parent / "data" / "dictionary.txt"
    data = needed_data()
    splits = novels_or_documentation(data, given.sentences)
    with registry_at(given.registry) as registry:
        for style, written in ("written", list), ("recognised", as_recognised):
            texts = {split: registry / f"{style}.{split}.txt" for split in splits}
            for split, path in texts.items():
                lines = splits[split] if split == "train" else splits[split][:HELD_OUT_LINES]
                path.write_text("\n".join(written(lines)) + "\n")
            for number, (purposes, keys) in enumerate(choices_for(texts["train"]).items()):
                name = f"{style}-{number}"
                settings = [f"--set={key}" for key in (*keys, f"train.max_minutes={given.minutes}")]
                corpora = (f"--corpus={texts['train']}", f"--valid={texts['valid']}")
                train(registry, "mixture", name, *corpora, *settings)
                common = (name, "--corpus", texts["test"], "--registry", registry)
                bits = gramophone_json("evaluate", *common)["bits_per_byte"]
                typed = gramophone_json("evaluate", *common, "--task", "autocomplete")
                checked = gramophone_json(
                    "evaluate", *common, "--task", "check", "--misspellings", misspellings
                )
                lists = data / "nbest" / "librispeech-clean.json"
                tuned = gramophone_json("tune", name, lists, "--max-p-value", 1, "--registry", registry)
                print(
                    f"{style}, {purposes} ({', '.join(keys)}): {bits:.3f} bits per byte, "
                    f"{1 - typed['keys_pressed']['top_3'] / typed['keys']:.1%} of keys saved, "
                    f"F0.5 {checked['kinds']['misspelling']['tuned']['f0_5']:.3f}, "
                    f"WER {tuned['baseline']:.2f} to {tuned['tried']:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
