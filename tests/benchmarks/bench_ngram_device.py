"""The n-gram model as tensors on a device beside the CPU's kernels, in one process.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_ngram_device.py [--sentences N] [--device cpu]

It needs a CUDA device; `--device cpu` runs torch on the CPU and only shows that the code works: the tensors are
meant for devices. Two models of order 5 are estimated from the first sentences of the novels (without the public data:
of Python's documentation): one with the most frequent words, one whose vocabulary is padded with words never
seen. Seconds differ between machines and hours; only ratios of one run may be quoted.
"""

import argparse
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from preparation import data_folder, leave_out, novels_or_documentation

from models.language_model import pad_sequences, prefill_sequences, score_sequences
from models.ngram.cuda.model import TensorNGramModel
from models.ngram.model import NGramModel
from models.vocabulary import EOS, Vocabulary
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

ORDER = 5
VOCABULARIES = (32_000, 81_306)
BATCHES = (1, 32, 256, 1024)
REPEATS = 5
WORD = re.compile(r"[a-z0-9]+(?:['\u2019][a-z]+)?|[^\sa-z0-9]")


def vocabulary_of(texts: list[list[str]], size: int) -> Vocabulary:
    """Return the most frequent words, padded with words that no text has."""
    words = [word for word, _ in Counter(word for text in texts for word in text).most_common(size - 3)]
    return Vocabulary(words + [f"never {number}" for number in range(size - 3 - len(words))])


def encode(texts: list[list[str]], vocabulary: Vocabulary) -> list[list[int]]:
    ids = {word: vocabulary.id_of(word) for text in texts for word in text}
    return [[ids[word] for word in text] for text in texts]


def median_seconds(work: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median wall time of each, measured in turn so that noise is shared; synchronises the device."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for name, call in [*work.items(), *list(work.items()) * REPEATS]:  # the first round warms up
        began = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def bench(cpu: NGramModel, device: TensorNGramModel, texts: list[list[int]], batch: int) -> None:
    """Compare distributions and scores of a batch of texts."""
    tokens, lengths = pad_sequences([[*texts[row % len(texts)], EOS] for row in range(batch)])
    start, device_start = cpu.initial_state(batch), device.initial_state(batch)
    middle = lengths // 2
    state, device_state = (
        prefill_sequences(cpu, start, tokens, middle),
        prefill_sequences(device, device_start, tokens, middle),
    )
    assert np.array_equal(device_state.ids.cpu(), state.ids)
    seconds = median_seconds(
        {
            "log-probs cpu": lambda: cpu.next_log_probs(state),
            "log-probs device": lambda: device.next_log_probs(device_state),
            "score cpu": lambda: score_sequences(cpu, start, tokens, lengths),
            "score device": lambda: score_sequences(device, device_start, tokens, lengths),
        }
    )
    rows = {name: batch / value for name, value in seconds.items()}
    scored = {name: lengths.sum() / value for name, value in seconds.items()}
    print(
        f"  {batch:5} {rows['log-probs cpu']:13,.0f} {rows['log-probs device']:13,.0f}"
        f" {seconds['log-probs cpu'] / seconds['log-probs device']:7.2f}x"
        f" {scored['score cpu'] / 1e6:9.3f} {scored['score device'] / 1e6:9.3f}"
        f" {seconds['score cpu'] / seconds['score device']:7.2f}x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=100_000, help="number of training sentences")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    device = arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        leave_out("there is no CUDA device (--device cpu shows that it works)")
    print(f"device: {torch.cuda.get_device_name() if device == 'cuda' else 'torch on the CPU'}")
    texts = novels_or_documentation(data_folder(), arguments.sentences)
    train, test = ([WORD.findall(line.lower()) for line in texts[split]] for split in ("train", "test"))
    for size in VOCABULARIES:
        vocabulary = vocabulary_of(train, size)
        corpus = EncodedCorpus.from_sentences(encode(train, vocabulary))
        model = estimate(corpus, vocabulary, order=ORDER, progress=Progress()).model
        moved = TensorNGramModel(model, device=device)
        print(f"V = {size:,}, order {ORDER}, {model.automaton.num_arcs:,} n-grams")
        print("  batch   contexts/s: cpu        device   ratio   M tokens/s: cpu  device   ratio")
        for batch in BATCHES:
            bench(model, moved, encode(test[:2000], vocabulary), batch)


if __name__ == "__main__":
    main()
