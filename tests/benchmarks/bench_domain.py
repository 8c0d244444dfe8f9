"""Little text of a domain and much other text: networks trained anew, further and mixed; selection of lines.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_domain.py [--registry FOLDER]

The domain is Python's own documentation, of which a tenth is the training text. The other text is novels: one
sentence in 22 for the networks; for the selection all of them, with the documentation among them. Figures are
of the documentation's test text. Models that are in the registry are not trained again.
"""

import argparse
import json
import random
from pathlib import Path

from preparation import needed_data, read_lines, registry_at, train

from training.progress import SILENT
from training.selection import run_select
from training.texts import read_default_corpus

SHAPE = ("--set", "neural.hidden_size=256", "--set", "neural.embedding_size=128")
BASE = ("--set", "train.from=base")
RATES = ("5e-4", "1e-3", "2e-3", "6e-3")


def write(path, lines):
    """Write lines to a file; return it."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def train_networks(registry, texts, folder):
    """Train every network, and yield its description and name."""
    novels = write(folder / "novels.txt", texts["novels"][21::22])
    valid = write(folder / "novels-valid.txt", texts["novels valid"][59::60])
    domain = [
        f"--{option}={write(folder / f'{option}.txt', texts[split])}"
        for option, split in (("corpus", "tenth"), ("valid", "valid"), ("test", "test"))
    ]
    own = ("--set", "tokenizer.vocab_size=4000", "--set", "train.epochs=2")
    train(registry, "lstm", "base", f"--corpus={novels}", f"--valid={valid}", domain[2], *SHAPE, *own)
    yield "novels only", "base"
    train(registry, "lstm", "anew", *domain, *SHAPE, "--set", "tokenizer.vocab_size=2000")
    yield "the tenth only, 2,000 pieces of its own", "anew"
    parts = ("--set", 'mixture.recipes=["lstm"]', "--set", 'mixture.models=["base"]')
    train(registry, "mixture", "mixed", *domain, *SHAPE, *parts)
    yield "mixture of base and a network trained anew", "mixed"
    for rate in RATES:
        train(registry, "finetune", rate, *domain, *BASE, "--set", f"train.learning_rate={rate}")
        yield f"base, fine-tuned, learning rate {rate}", rate
    parts = ("--set", 'mixture.recipes=["ngram"]', "--set", f'mixture.models=["{RATES[-1]}"]')
    train(registry, "mixture", "ngram", *domain, *parts)
    yield "mixture of the last and an n-gram model of the tenth", "ngram"


def select(texts, folder):
    """Select lines of novels and documentation that are like the validation text; print the compared shares."""
    mixed = [*texts["novels"], *texts["train"]]
    random.Random(1).shuffle(mixed)
    large, small = write(folder / "large.txt", mixed), write(folder / "small.txt", texts["valid"][:500])
    result = run_select([large], in_domain=[small], output=folder / "out.txt")
    chosen = (folder / "out.txt").read_text(encoding="utf-8").splitlines()
    documentation = set(texts["train"])
    print(f"\n{'share':>8} {'lines':>9} {'tokens':>11} {'held-out perplexity':>20}")
    for trial in result["trials"]:
        line = f"{trial['share']:8.2%} {trial['lines']:9,} {trial['tokens']:11,} {trial['perplexity']:20.2f}"
        print(line)
    found = sum(line in documentation for line in chosen)
    print(f"selected {len(chosen):,} of {len(mixed):,} lines, of which {found:,} are documentation")


def main():
    """Print perplexity per word and bits per byte of each network, then the selection."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--registry", type=Path, help="folder that keeps the models")
    given = parser.parse_args().registry
    data = needed_data()
    novels, novels_valid = (
        read_lines(data / "novels" / f"novels.{split}.txt.xz") for split in ("train", "valid")
    )
    documentation = [list(corpus.sentences) for corpus in read_default_corpus(SILENT)]
    texts = {"novels": novels, "novels valid": novels_valid, "tenth": documentation[0][::10]}
    texts |= dict(zip(("train", "valid", "test"), documentation, strict=True))
    with registry_at(given) as registry, registry_at(None) as folder:
        print(f"{'network':56} {'per word':>10} {'bits per byte':>14}")
        for described, name in train_networks(registry, texts, folder):
            metrics = json.loads((registry / name / "versions/1/metrics.json").read_text())["test"]
            print(
                f"{described:56} {metrics['word_perplexity']:10,.0f} {metrics['bits_per_byte']:14.3f}",
                flush=True,
            )
        select(texts, folder)


if __name__ == "__main__":
    main()
