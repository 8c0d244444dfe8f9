"""Misspellings that people made, beside errors that the evaluation generates, found by the same model.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_misspellings.py [--words 20000] [--sentences 60000]

An n-gram model of words and punctuation learns from sentences of the novels, or else of Python's documentation. One
word in twenty of held-out text becomes an error: of each generated kind, or from a dictionary of the package codespell.
`dictionary` has misspellings that people made, `dictionary_rare` has words in place of others (fro for from), and
`rare_known` has those of them that occur in the training text. A correct word is chosen as often as it occurs in the
text. A correction is right if it is the first suggestion.

Then the misspellings are halved by the hash of the correct word. A table of edits is fitted on half of `dictionary`,
and the other halves are found with and without it. `…_single` has the misspellings of one correct word only.
"""

import argparse
import hashlib
import re
import sys
from collections import Counter
from pathlib import Path

from preparation import data_folder, novels_or_documentation, peer, registry_at, train

from models.checking.error_model import ErrorTableStore, fit_error_table
from training.evaluation.spelling import KINDS, read_misspellings, run_check_task

PATTERN = r"\w+(?:-\w+)*|[^\w\s]"


def show(name, figures):
    """Print precision, recall and F0.5 of detection, and of correction at the same threshold."""
    found = figures["tuned"]
    right = found["correction_accuracy"] or 0.0  # F0.5 is proportional to it, as precision and recall are
    cells = [found[key] for key in ("precision", "recall", "f0_5")]
    detection, correction = (
        ", ".join(f"{factor * cell:.2f}" for cell in cells[:2]) + f", {factor * cells[2]:.3f}"
        for factor in (1, right)
    )
    print(f"{name:16} {figures['errors']:5} errors, detection {detection}, correction {correction}")


def known_rare(registry, folder, splits):
    """Write the rare words that occur in the training text to a file of the registry; return its path."""
    known = set(re.findall(PATTERN, "\n".join(splits["train"])))
    lines = (folder / "dictionary_rare.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    path = registry / "rare_known.txt"
    path.write_text("".join(line for line in lines if line.split("->")[0] in known), encoding="utf-8")
    return path


def halves(path):
    """Return the misspellings of a list by correct word, in two halves."""
    parts = ({}, {})
    for right, wrong in read_misspellings(path).items():
        parts[hashlib.sha256(right.encode()).digest()[0] % 2][right] = wrong
    return parts


def write_list(path, misspellings, *, single=False):
    """Write misspellings to a file, optionally only those of one correct word; return its path."""
    count = Counter(word for wrong in misspellings.values() for word in set(wrong))
    lines = (f"{word}->{right}\n" for right, wrong in misspellings.items() for word in wrong)
    path.write_text(
        "".join(line for line in lines if not single or count[line.split("->")[0]] == 1), encoding="utf-8"
    )
    return path


def compare(registry, lists, fixed):
    """Print the figures of the second halves of lists, without a table of edits and with one."""
    store = ErrorTableStore(registry)
    table = fit_error_table(halves(lists[0])[0], "")
    print(f"fitted on {table.one_edit:,} misspellings with one edit, {table.two_edits:,} with two")
    for path in lists:
        for single in (False, True):
            name = path.stem + "_single" * single
            other = write_list(registry / f"half_{name}.txt", halves(path)[1], single=single)
            for title in ("uniform", "fitted"):
                if title == "fitted":
                    stored = store.write("checked", table)
                result = run_check_task("checked", **fixed, misspellings=other)
                at = next(figures for figures in result["thresholds"] if figures["threshold"] == 0.5)
                cells = [at[key] for key in ("precision", "recall", "f0_5", "correction_accuracy")]
                print(f"{name} {title}, at 0.5:", *(f"{cell:.3f}" for cell in cells))
                show(f"{name} {title}", result["kinds"]["misspelling"])
            Path(stored).unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registry", type=Path)
    parser.add_argument("--words", type=int, default=20_000, help="held-out words for each kind of error")
    parser.add_argument("--sentences", type=int, default=60_000, help="sentences to train on")
    options = parser.parse_args()
    folder = Path(peer("codespell_lib", "codespell==2.4.3").__file__).parent / "data"
    splits = novels_or_documentation(data_folder(), options.sentences)
    with registry_at(options.registry) as registry:
        texts = {split: registry / f"{split}.txt" for split in splits}
        for split, path in texts.items():
            path.write_text("\n".join(splits[split]))
        corpora = (f"--corpus={texts['train']}", f"--valid={texts['valid']}")
        train(registry, "ngram", "checked", *corpora, "--set", f"tokenizer.pattern={PATTERN}")
        fixed = {"corpus": [texts["test"]], "registry": registry, "device": "cpu", "sample": options.words}
        print("precision, recall and F0.5 at the threshold that is best on other lines")
        for kind in KINDS:
            show(kind, run_check_task("checked", **fixed, kinds=[kind])["kinds"][kind])
        for path in (
            folder / "dictionary.txt",
            folder / "dictionary_rare.txt",
            known_rare(registry, folder, splits),
        ):
            result = run_check_task("checked", **fixed, misspellings=path)
            show(path.stem, result["kinds"]["misspelling"])
        lists = [folder / "dictionary.txt", folder / "dictionary_rare.txt", registry / "rare_known.txt"]
        compare(registry, lists, fixed)


if __name__ == "__main__":
    sys.exit(main())
