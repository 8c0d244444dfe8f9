"""The n-gram family beside KenLM's Python module, in one process: run it, read the ratios.

    GRAMOPHONE_DATA=… python -m tests.benchmarks.bench_ngram [--large]

Takes its texts from the public data folder and leaves nothing behind. Seconds differ between
machines and hours; ratios of medians measured in one run are what may be quoted.
"""

import argparse
import lzma
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import kenlm
import numpy as np

from models.ngram.model import NGramModel
from models.scoring import pad
from models.tokenizers import WordTokenizer
from models.vocabulary import EOS, Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Silent

REPEATS = 7
BATCH = 256
LARGE_PATTERN = r"[a-z0-9]+(?:['\u2019][a-z]+)?|[^\sa-z0-9]"


class Text(NamedTuple):
    """Lines and what a tokenizer made of them."""

    lines: list[str]
    tokenizer: WordTokenizer
    corpus: EncodedCorpus


def read(path: Path) -> list[str]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def prepare(path: Path, *, pattern: str | None = None) -> Text:
    """Encode a text with a vocabulary of all its words."""
    lines = read(path)
    words = WordTokenizer(Vocabulary([]), pattern=pattern, lowercase=pattern is not None)._split
    vocabulary = Vocabulary(dict.fromkeys(word for line in lines for word in words(line)))
    tokenizer = WordTokenizer(vocabulary, pattern=pattern, lowercase=pattern is not None)
    return Text(lines, tokenizer, EncodedCorpus.from_sentences(map(tokenizer.encode, lines)))


def median_seconds(work: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median wall time of each, taken in turns so that all see the same noise."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for name, call in [*work.items(), *list(work.items()) * REPEATS]:  # the first round warms up
        began = time.perf_counter()
        call()
        seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def bench_estimation(text: Text, order: int) -> NGramModel:
    """From ids to a saved file, once; the peak is the whole process's, the corpus included."""
    before = peak_gb()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = estimate(text.corpus, text.tokenizer.vocabulary, order=order, progress=Silent())
        estimated = time.perf_counter()
        result.model.save(Path(folder))
        saved = time.perf_counter()
        NGramModel.load(Path(folder), text.tokenizer.vocabulary, device="cpu")
        loaded = time.perf_counter()
        size = (Path(folder) / "ngram.bin").stat().st_size
    ngrams = sum(result.num_ngrams)
    print(f"estimation, order {order}: {text.corpus.num_tokens:,} tokens, {ngrams:,} n-grams")
    print(f"  {estimated - began:.2f} s to estimate, {saved - estimated:.2f} s to save {size / 1e6:.0f} MB")
    print(f"  {1e3 * (loaded - saved):.1f} ms to open and check; {size / ngrams:.1f} bytes an n-gram")
    print(f"  peak memory {peak_gb():.2f} GB, {before:.2f} GB before")
    return result.model


def score_batches(model: NGramModel, batches: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    for tokens, lengths in batches:
        model.score(model.initial_state(len(lengths)), tokens, lengths)


def bench_scoring(model: NGramModel, tokenizer: WordTokenizer, oracle: kenlm.Model, lines: list[str]) -> None:
    """Tokens a second: ours from ids, KenLM's from text, its only input."""
    encoded = [[*ids, EOS] for ids in tokenizer.encode_all(lines)]
    batches = [pad(encoded[i : i + BATCH]) for i in range(0, len(encoded), BATCH)]
    single = [pad([ids]) for ids in encoded]
    num_tokens = sum(map(len, encoded))
    seconds = median_seconds(
        {
            f"ours, batches of {BATCH}": lambda: score_batches(model, batches),
            "ours, one sentence a call": lambda: score_batches(model, single),
            "kenlm score (sum only)": lambda: [oracle.score(line) for line in lines],
            "kenlm full_scores": lambda: [list(oracle.full_scores(line)) for line in lines],
        }
    )
    baseline = seconds["kenlm full_scores"]
    print(f"scoring {num_tokens:,} tokens")
    for name, value in seconds.items():
        print(f"  {name:28} {num_tokens / value / 1e6:6.2f} M tokens/s  {baseline / value:5.2f}x full_scores")


def bench_distribution(model: NGramModel, oracle: kenlm.Model, lines: list[str]) -> None:
    """All next-word probabilities after one context; KenLM is asked for every word."""
    tokens = model.vocabulary.tokens
    context = lines[0].split()[:3]
    state = model.initial_state(1)
    left, right = kenlm.State(), kenlm.State()
    oracle.BeginSentenceWrite(left)
    for word in context:
        state = model.advance(state, np.array([model.vocabulary.id_of(word)]))
        oracle.BaseScore(left, word, right)
        left, right = right, left
    many = state.select(np.zeros(64, dtype=np.int64))
    seconds = median_seconds(
        {
            "ours, one context": lambda: model.next_log_probs(state),
            "ours, batch of 64, each": lambda: model.next_log_probs(many),
            "kenlm, every word": lambda: [oracle.BaseScore(left, word, right) for word in tokens],
        }
    )
    seconds["ours, batch of 64, each"] /= 64
    print(f"full distribution over {len(tokens):,} words")
    for name, value in seconds.items():
        ratio = seconds["kenlm, every word"] / value
        print(f"  {name:28} {1e6 * value:9.1f} µs  {ratio:7.0f}x faster than asking for every word")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="also estimate 14M tokens of novels, order 5")
    arguments = parser.parse_args()
    named = os.environ.get("GRAMOPHONE_DATA")  # noqa: TID251 - benchmarks are no part of the service
    if not named:
        print("nothing measured: GRAMOPHONE_DATA must name the public data folder, with KenLM's model in it")
        return
    data = Path(named)
    reference = prepare(data / "reference" / "corpus.txt.xz")
    model = bench_estimation(reference, 4)
    bench_estimation(prepare(data / "novels-1m" / "train.txt.xz"), 5)
    if arguments.large:
        bench_estimation(prepare(data / "novels" / "novels.train.txt.xz", pattern=LARGE_PATTERN), 5)
    with tempfile.TemporaryDirectory() as folder:
        arpa = Path(folder) / "order4.arpa"
        arpa.write_bytes(lzma.decompress((data / "reference" / "order4.arpa.xz").read_bytes()))
        oracle = kenlm.Model(str(arpa))
    test = read(data / "reference" / "test.txt.xz")
    bench_scoring(model, reference.tokenizer, oracle, test)
    bench_distribution(model, oracle, test)


if __name__ == "__main__":
    main()
