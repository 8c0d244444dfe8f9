"""A small GPT-2 trained on novels: the form in which it reads recognised text, and text sampled from it.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_pretrained_text.py [--minutes 15] [--registry FOLDER]

The model has 4 layers of 256 units and 8,000 byte-level tokens; a torch loop trains it on the novels' training text,
cased and with punctuation. First it re-ranks recognised speech, which is lower-cased and has no punctuation, in each
form, beside an n-gram model of the lower-cased novels: word error rates by cross-fitting with five folds. Then an
n-gram model and an LSTM learn from `--lines` lines of the novels, from as many and four times as many lines that the
GPT-2 wrote, and from both; bits per byte of the test text.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from bench_hours import PATTERN
from bench_pretrained import write_tokenizer
from preparation import gramophone, gramophone_json, needed_data, novels_or_documentation, registry_at, train
from tokenizers import Tokenizer

LISTS = ("librispeech-clean", "common-voice")
BATCH, LENGTH, RATE = 8, 256, 3e-3
HELD_OUT_LINES, TOKENIZER_LINES = 5000, 100_000


def write_gpt2(folder, lines, minutes):
    """Train a GPT-2 on lines for some minutes and write its folder."""
    folder.mkdir()
    write_tokenizer(folder, lines[:TOKENIZER_LINES])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode_batch(lines)
    text = torch.from_numpy(np.concatenate([np.array([0, *line.ids], dtype=np.int64) for line in ids]))
    config = transformers.GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_positions=LENGTH, n_embd=256, n_layer=4, n_head=4, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    begun, updates = time.monotonic(), 0
    while (share := (time.monotonic() - begun) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (updates + 1) / 100) * 0.5 * (1 + math.cos(math.pi * share))
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1))
        batch = text[starts + torch.arange(LENGTH)]
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        updates += 1
        if updates % 500 == 0:
            print(f"{share:.0%}: loss {loss:.3f}", file=sys.stderr, flush=True)
    model.save_pretrained(folder)
    seen = updates * BATCH * LENGTH
    print(
        f"GPT-2: {model.num_parameters():,} weights, {seen:,} tokens ({seen / len(text):.2f} passes)",
        flush=True,
    )


def compare_forms(registry, data):
    """Print the word error rate of each set of lists: first pass, both models in each form, the best candidates."""
    for name in LISTS:
        lists = data / "nbest" / f"{name}.json"
        options = ("--folds", 5, "--max-p-value", 1, "--registry", registry)
        alone = gramophone_json("tune", "words", lists, *options)
        print(
            f"{name}: first pass {alone['baseline']:.2f}, n-grams {alone['tried']:.2f}, oracle {alone['oracle']:.2f}"
        )
        for form in ("asis", "sentence-case", "sentence"):
            both = gramophone_json("tune", "words", lists, "--models", "gpt2=gpt2", "--form", form, *options)
            print(f"  and GPT-2, {form:14} {both['tried']:.2f}", flush=True)


def compare_students(registry, lines, held_out, minutes):
    """Print bits per byte of models that learned from own text, from sampled text and from both."""
    own, few, many = (registry / f"{name}.txt" for name in ("own", "sampled", "sampled-4"))
    own.write_text("\n".join(lines) + "\n")
    if not many.exists():
        count = ("--lines", 4 * len(lines), "--max-tokens", 200)
        gramophone("generate", "gpt2", *count, "--out", many, "--registry", registry)
    few.write_text("\n".join(many.read_text().splitlines()[: len(lines)]) + "\n")
    texts = {"own": [own], "sampled": [few], "sampled-4": [many], "own-1": [own, few], "own-4": [own, many]}
    names = ["gpt2"]
    for name, corpora in texts.items():
        for recipe, keys in ("ngram", ()), ("lstm", (f"--set=train.max_minutes={minutes}",)):
            names.append(f"{recipe}-{name}")
            sources = [f"--corpus={path}" for path in corpora]
            train(
                registry,
                recipe,
                names[-1],
                *sources,
                "--valid",
                held_out["valid"],
                "--set=tokenizer.kind=unigram",
                *keys,
            )
    for name in names:
        found = gramophone_json("evaluate", name, "--corpus", held_out["test"], "--registry", registry)
        print(f"{name:20} {found['bits_per_byte']:.3f} bits per byte", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15, help="of training the GPT-2")
    parser.add_argument("--student-minutes", type=float, default=4, help="of training each LSTM")
    parser.add_argument("--lines", type=int, default=20_000, help="of own text")
    parser.add_argument("--registry", type=Path)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    data = needed_data()
    with registry_at(given.registry) as registry:
        texts = novels_or_documentation(data)
        if not (registry / "gpt2").exists():
            write_gpt2(registry / ".gpt2", texts["train"], given.minutes)
            gramophone("models", "import-hf", registry / ".gpt2", "--name", "gpt2", "--registry", registry)
        novels = [f"--corpus={path}" for path in sorted((data / "novels").glob("*.train.txt.xz"))]
        keys = ("tokenizer.kind=word", "tokenizer.lowercase=true", f"tokenizer.pattern={PATTERN}")
        train(registry, "ngram", "words", *novels, *(f"--set={key}" for key in keys))
        compare_forms(registry, data)
        held_out = {split: registry / f"{split}.txt" for split in ("valid", "test")}
        for split, path in held_out.items():
            path.write_text("\n".join(texts[split][:HELD_OUT_LINES]) + "\n")
        step = len(texts["train"]) // given.lines
        compare_students(registry, texts["train"][::step][: given.lines], held_out, given.student_minutes)


if __name__ == "__main__":
    main()
