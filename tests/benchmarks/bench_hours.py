"""The recipe `cpu-100min` on the novels, and a plain torch loop of the same time with the same tokens.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_hours.py [--minutes 100] [--only recipe|plain] [--registry FOLDER]

14 million tokens, lower-cased, of 81,000 words. The plain loop is what a reader of torch's tutorials writes: an
embedding, `nn.LSTM`, `nn.AdaptiveLogSoftmaxWithLoss` and AdamW with a cosine schedule, in float32 or with
`torch.autocast` to bfloat16 (--bfloat16). Both are evaluated on one excerpt of the test text as running text, with an
unknown word charged at the probability of `<unk>`.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from preparation import needed_data, registry_at, train
from torch import nn

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import BOS
from training.commands import run_evaluate
from training.corpus import read_lines
from training.progress import Progress
from training.tokenizer import encode_corpus

PATTERN = r"[a-z0-9]+(?:['\u2019][a-z]+)?|[^\sa-z0-9]"
VALID_EXCERPTS, VALID_LINES, TEST_LINES = 5, 400, 15_000
BATCH, LENGTH, WIDTH, UNITS, CUTOFFS, RATE = 64, 35, 512, 1024, [4000, 20_000], 3e-3


def texts_at(folder, data):
    """Write the training text, excerpts of the validation text and the beginning of the test text; return the paths."""
    paths = {split: folder / f"{split}.txt" for split in ("train", "valid", "test")}
    for split, path in paths.items():
        lines = list(read_lines(data / "novels" / f"novels.{split}.txt.xz"))
        if split == "valid":
            step = len(lines) // VALID_EXCERPTS
            lines = [line for n in range(VALID_EXCERPTS) for line in lines[n * step : n * step + VALID_LINES]]
        path.write_text("\n".join(lines[:TEST_LINES] if split == "test" else lines) + "\n")
    return paths


class PlainModel(nn.Module):
    """One LSTM between an embedding and an adaptive softmax."""

    def __init__(self, size):
        super().__init__()
        self.embedding = nn.Embedding(size, WIDTH)
        self.lstm = nn.LSTM(WIDTH, UNITS)
        self.dropout = nn.Dropout(0.1)
        self.project = nn.Linear(UNITS, WIDTH)
        self.output = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, size, CUTOFFS, div_value=4)

    def features(self, tokens, hidden):
        read, hidden = self.lstm(self.dropout(self.embedding(tokens)), hidden)
        return self.dropout(self.project(read)).flatten(0, 1), hidden


def running_text(corpus):
    return torch.as_tensor(corpus.with_boundaries().astype(np.int64))


def train_plain(text, size, minutes, *, bfloat16):
    """Train the plain model for some minutes; return it."""
    torch.manual_seed(1)
    model = PlainModel(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    rows = (len(text) - 1) // BATCH
    inputs, targets = (
        text[:-1][: rows * BATCH].view(BATCH, rows).T,
        text[1:][: rows * BATCH].view(BATCH, rows).T,
    )
    begun, seen, hidden, at = time.monotonic(), 0, None, 0
    while (share := (time.monotonic() - begun) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * share))
        if at + LENGTH > rows:
            at, hidden = 0, None
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            read, hidden = model.features(inputs[at : at + LENGTH], hidden)
        loss = model.output(read.float(), targets[at : at + LENGTH].flatten()).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        hidden = tuple(part.detach() for part in hidden)
        at, seen = at + LENGTH, seen + LENGTH * BATCH
        if seen // (LENGTH * BATCH) % 500 == 0:
            print(
                f"plain: {share:.0%}, {seen / (time.monotonic() - begun):,.0f} tokens/s, loss {loss:.3f}",
                flush=True,
            )
    print(f"plain: {seen:,} tokens, {seen / len(text):.2f} passes, {seen / 60 / minutes:,.0f} tokens/s")
    return model


@torch.no_grad()
def plain_perplexity(model, text):
    """Return the perplexity of running text; `<s>` after `</s>` is read but not predicted."""
    model.eval()
    hidden, total, count = None, 0.0, 0
    for begin in range(0, len(text) - 1, 1000):
        tokens, targets = text[begin : begin + 1001][:-1], text[begin + 1 : begin + 1001]
        read, hidden = model.features(tokens[:, None], hidden)
        predicted = targets != BOS
        total += model.output(read, targets).output[predicted].sum().item()
        count += int(predicted.sum())
    return math.exp(-total / count)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registry", type=Path)
    parser.add_argument(
        "--minutes", type=float, default=100, help="of each of the two, all steps of the recipe included"
    )
    parser.add_argument(
        "--network-minutes", type=float, help="of the recipe's network; 85 of 100 if not given"
    )
    parser.add_argument("--only", choices=["recipe", "plain"])
    parser.add_argument("--bfloat16", action="store_true", help="autocast in the plain loop")
    options = parser.parse_args()
    with registry_at(options.registry) as registry:
        paths = texts_at(registry, needed_data())
        if options.only != "plain":
            begun = time.monotonic()
            settings = {
                "tokenizer.pattern": PATTERN,
                "train.max_minutes": options.network_minutes or 0.85 * options.minutes,
                "mixture.publish_parts": "true",
            }
            keys = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
            train(
                registry,
                "cpu-100min",
                "hours",
                f"--corpus={paths['train']}",
                f"--valid={paths['valid']}",
                *keys,
            )
            print(f"recipe: {(time.monotonic() - begun) / 60:.1f} minutes in all")
            for name in ("ngram", "lstm", "hours"):
                common = {"registry": registry, "unit": "line", "window": 1, "device": "cpu"}
                found = run_evaluate(name, corpus=[paths["test"]], context="stream", **common)
                print(
                    f"{name}: test perplexity {found['perplexity']:.2f}, {found['perplexity_without_oov']:.2f} without "
                    f"{found['oov']} unknown of {found['tokens']:,} ({found['precision']})"
                )
        if options.only != "recipe":
            store = LocalRegistry(registry)
            tokenizer = load_checkpoint(store.fetch(store.resolve("ngram"))).tokenizer
            texts = {
                split: running_text(
                    encode_corpus(tokenizer, path.read_text().splitlines(), progress=Progress())
                )
                for split, path in paths.items()
            }
            model = train_plain(
                texts["train"], len(tokenizer.vocabulary), options.minutes, bfloat16=options.bfloat16
            )
            print(f"plain: test perplexity {plain_perplexity(model, texts['test']):.2f}")


if __name__ == "__main__":
    sys.exit(main())
