"""The n-gram engine beside KenLM's Python module, in one run: read the ratios.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_ngram.py [--order 5] [--sentences N]

Trains order 5 on the novels of the public data folder with the command line (without the data, on Python's
documentation; that model is small enough for CPU caches), gives KenLM the same model as an ARPA file, and deletes
everything at the end. Training, reading and writing run once, the rest several times. It takes some three minutes
and 4 GB.
Seconds differ between machines and hours; only ratios of medians measured in one run may be quoted.
"""

import argparse
import json
import math
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from preparation import data_folder, novels_or_documentation, peer

from models.checkpoint.load import load_checkpoint
from models.language_model import EOS
from models.ngram.arpa_reader import read_arpa
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import build_automaton, list_ngrams, quantise_automaton
from models.ngram.model import NGramModel, NGramState, score_lines
from models.tokenizers import Tokenizer

kenlm = peer("kenlm", "ufal.kenlm>=26")
REPEATS = 7
CONTEXTS = 100
DRAWS = 10
PATTERN = re.compile(r"[a-z0-9]+(?:['\u2019][a-z]+)?|[^\sa-z0-9]")
OPENING = """
import json, sys, time
from pathlib import Path
import numpy as np
from models.checkpoint.golden import replay_golden
from models.checkpoint.load import load_checkpoint
from models.checkpoint.manifest import read_manifest, verify_files
from models.language_model import score_sequences
from models.ngram.automaton import Automaton
from models.ngram.model import NGramModel
from models.ngram.build import verify_automaton
from models.checkpoint.load import load_tokenizer

folder = Path(sys.argv[1])
times = {}
def timed(name, call):
    began = time.perf_counter()
    result = call()
    times[name] = 1e3 * (time.perf_counter() - began)
    return result
vocabulary = load_tokenizer(folder).vocabulary
model = timed("open the file", lambda: NGramModel(Automaton.load(folder / "ngram.bin"), vocabulary))
tokens, lengths = np.array([[11, 42, 7, 2]]), np.array([4])
timed("first score", lambda: score_sequences(model, model.initial_state(1), tokens, lengths))
timed("verify every index and value", lambda: verify_automaton(model.automaton, folder / "ngram.bin"))
timed("verify hashes", lambda: verify_files(folder, read_manifest(folder)))
timed("golden test", lambda: replay_golden(folder, model, device="cpu"))
timed("all of load_checkpoint, tokenizer included", lambda: load_checkpoint(folder))
print(json.dumps(times))
"""


def prepare(data: Path | None, scratch: Path, sentences: int | None) -> dict[str, Path]:
    """Write the text, lower-cased, with spaces between words: one file per split."""
    files = {}
    for split, lines in novels_or_documentation(data, sentences).items():
        files[split] = scratch / f"{split}.txt"
        text = "".join(" ".join(PATTERN.findall(line.lower())) + "\n" for line in lines)
        files[split].write_text(text, encoding="utf-8")
    return files


def median_seconds(work: dict[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, float]:
    """Return the median wall time of each, measured in turn so that noise affects all equally."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for name, call in [*work.items(), *list(work.items()) * repeats]:  # the first round warms up
        began = time.perf_counter()
        call()
        seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def bench_training(files: dict[str, Path], registry: Path, order: int) -> Path:
    """Run the command from text files to a published version."""
    command = [sys.executable, "-m", "service.cli", "train", "ngram", "--name", "novels", "--json"]
    command += ["--corpus", str(files["train"]), "--valid", str(files["valid"]), "--test", str(files["test"])]
    command += ["--registry", str(registry), "--set", f"ngram.order={order}"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    result = json.loads(done.stdout)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    print(f"gramophone train, order {order}, {files['train'].stat().st_size / 1e6:.0f} MB of text")
    print(
        f"  {seconds:.1f} s from file to servable ({result['seconds']:.1f} s of it estimating), peak {peak:.2f} GB"
    )
    figures = result["test"]
    print(
        f"  test perplexity {figures['perplexity']:.3f}, without OOV {figures['perplexity_without_oov']:.3f}; "
        f"{figures['oov']:,} OOV in {figures['tokens']:,} tokens"
    )
    return Path(result["path"])


def bench_file(path: Path, model: NGramModel, coded: NGramModel, scratch: Path) -> None:
    """Print the bytes per n-gram and the milliseconds to open, each in a fresh process."""
    for name, one in {"exact": model, "quantised": coded}.items():
        one.automaton.save(scratch / name)
        size = (scratch / name).stat().st_size
        print(f"  {name}: {size / 1e6:.0f} MB, {size / model.automaton.num_arcs:.2f} bytes an n-gram")
        (scratch / name).unlink()
    runs = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", OPENING, str(path)], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(REPEATS)
    ]
    shown = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    print("  ms, imports aside: " + ", ".join(f"{name} {ms:.1f}" for name, ms in shown.items()))


def bench_arpa(model: NGramModel, arpa: Path) -> kenlm.Model:
    """Time the export, KenLM's reading of the file, and the import."""
    began = time.perf_counter()
    write_arpa(arpa, model.vocabulary, list_ngrams(model.automaton))
    exported = time.perf_counter()
    config = kenlm.Config()
    config.show_progress, config.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    oracle = kenlm.Model(str(arpa), config)
    read = time.perf_counter()
    build_automaton(read_arpa(arpa).orders)
    imported = time.perf_counter()
    print(f"ARPA, {arpa.stat().st_size / 1e6:.0f} MB: {exported - began:.1f} s to write")
    print(f"  {imported - read:.1f} s to read, kenlm {read - exported:.1f} s")
    return oracle


def contexts_of(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield prefixes of test sentences, of random lengths."""
    random = np.random.default_rng(0)
    for place in random.integers(0, len(lines), CONTEXTS):
        words = lines[place].split()
        yield words[: random.integers(0, len(words) + 1)]


def bench_distributions(model: NGramModel, oracle: kenlm.Model, lines: Sequence[str]) -> None:
    """Time next-word distributions, context by context; KenLM is queried for every word."""
    vocabulary = model.vocabulary
    states, theirs = [], []
    for words in contexts_of(lines):
        state, before = model.initial_state(1), kenlm.State()
        oracle.BeginSentenceWrite(before)
        for word in words:
            state = model.advance(state, np.array([vocabulary.id_of(word)]))
            after = kenlm.State()
            oracle.BaseScore(before, word, after)
            before = after
        states.append(state)
        theirs.append(before)
    batch = NGramState(np.concatenate([state.ids for state in states]))
    out = kenlm.State()
    seconds = median_seconds(
        {
            "distribution": lambda: [model.next_log_probs(state) for state in states],
            "distribution, one batch": lambda: model.next_log_probs(batch),
            "top 10": lambda: [model.top_k(state, 10) for state in states],
            "top 10, one batch": lambda: model.top_k(batch, 10),
        }
    )
    asked = theirs[:: CONTEXTS // DRAWS]
    every_word = median_seconds(
        {"kenlm": lambda: [[oracle.BaseScore(s, w, out) for w in vocabulary.tokens] for s in asked]},
        repeats=3,
    )["kenlm"] / len(asked)
    print(
        f"one of {CONTEXTS} contexts, {len(vocabulary):,} words; kenlm asked for every word: {1e3 * every_word:.1f} ms"
    )
    for name, value in seconds.items():
        each = value / CONTEXTS
        print(f"  {name:24} {1e6 * each:7.1f} µs  {every_word / each:7.0f}x")


def bench_scoring(
    model: NGramModel, coded: NGramModel, tokenizer: Tokenizer, oracle: kenlm.Model, lines: Sequence[str]
) -> None:
    """Print tokens per second over all test sentences; KenLM scores text, one sentence per call."""
    exhaust = deque(maxlen=0).extend  # consumes an iterator and stores nothing
    ids, offsets = tokenizer.encode_ragged(lines)
    sentences = [np.append(ids[begin:end], EOS) for begin, end in pairwise(offsets.tolist())]
    tokens, begins = np.concatenate(sentences).astype(np.int64), offsets + np.arange(len(offsets))
    starts = model.initial_state(len(lines))
    num_tokens = len(tokens)
    seconds = median_seconds(
        {
            "ids": lambda: model.score_ragged(starts, tokens, begins),
            "lines": lambda: score_lines(model, tokenizer, lines),
            "lines, 2 threads": lambda: score_lines(model, tokenizer, lines, threads=2),
            "ids, quantised": lambda: coded.score_ragged(starts, tokens, begins),
            "kenlm full_scores": lambda: exhaust(map(exhaust, map(oracle.full_scores, lines))),
            "kenlm score": lambda: exhaust(map(oracle.score, lines)),
        }
    )
    baseline = seconds["kenlm full_scores"]
    print(f"scoring {num_tokens:,} tokens")
    for name, value in seconds.items():
        print(f"  {name:18} {num_tokens / value / 1e6:6.2f} M tokens/s  {baseline / value:5.2f}x full_scores")
    exact = score_lines(model, tokenizer, lines).log_probs.mean(dtype=np.float64)
    rounded = score_lines(coded, tokenizer, lines).log_probs.mean(dtype=np.float64)
    theirs = sum(log10 for line in lines for log10, _, _ in oracle.full_scores(line)) / num_tokens
    print(
        f"  perplexity {math.exp(-exact):.4f}, quantised {math.exp(-rounded):.4f} "
        f"({math.expm1(exact - rounded):+.2%}), kenlm {10**-theirs:.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--order", type=int, default=5, help="model order, 5 by default")
    parser.add_argument(
        "--sentences", type=int, default=None, help="sentences of the novels' training text; all by default"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        files = prepare(data_folder(), scratch, given.sentences)
        path = bench_training(files, scratch / "registry", given.order)
        checkpoint = load_checkpoint(path)
        model = checkpoint.model
        assert isinstance(model, NGramModel)
        coded = NGramModel(quantise_automaton(model.automaton), model.vocabulary, normalised=False)
        bench_file(path, model, coded, scratch)
        oracle = bench_arpa(model, scratch / "novels.arpa")
        lines = files["test"].read_text(encoding="utf-8").splitlines()
        bench_distributions(model, oracle, lines)
        bench_scoring(model, coded, checkpoint.tokenizer, oracle, lines)


if __name__ == "__main__":
    main()
