"""N-gram models and LSTMs on a device beside the CPU's kernels, in one process.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_device.py [--sentences N] [--device cpu] [--only lstm]

It needs a CUDA device; `--device cpu` runs torch on the CPU and only shows that the code works. Two n-gram models of
order 5 are estimated from the first sentences of the novels (without the public data: of Python's documentation): one
with the most frequent words, one whose vocabulary is padded with words never seen. The LSTMs have random weights and
the shapes of the recipes `cpu-30min` and `gpu-20min`; the CPU computes them in int8. A next token is a step and the
distribution after it; scoring starts anew. Seconds differ between machines and hours; only ratios of one run may be
quoted.
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

from models.arrays import to_numpy
from models.language_model import (
    EOS,
    LanguageModel,
    Vocabulary,
    pad_sequences,
    prefill_sequences,
    score_sequences,
)
from models.neural.config import NetworkConfig
from models.neural.int8.model import Int8Model
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.ngram.cuda.model import TensorNGramModel
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

ORDER = 5
VOCABULARIES = (32_000, 81_306)
LSTMS = {"1 x 640": (1, 400, 640), "3 x 1152": (3, 400, 1152)}
"""Layers, embedding size and hidden size of networks by name."""
LSTM_VOCABULARY = 10_002
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


def bench(cpu: LanguageModel, device: LanguageModel, texts: list[list[int]], batch: int) -> None:
    """Compare next tokens and scores of a batch of texts."""
    tokens, lengths = pad_sequences([[*texts[row % len(texts)], EOS] for row in range(batch)])
    middle, last = lengths // 2, np.array([texts[row % len(texts)][0] for row in range(batch)])
    start, device_start = cpu.initial_state(batch), device.initial_state(batch)
    state, device_state = (
        prefill_sequences(model, begun, tokens, middle)
        for model, begun in ((cpu, start), (device, device_start))
    )
    expected, found = (model.next_log_probs(some) for model, some in ((cpu, state), (device, device_state)))
    np.testing.assert_allclose(to_numpy(found), expected, atol=0.1)  # the CPU's may be in int8
    seconds = median_seconds(
        {
            "next cpu": lambda: cpu.next_log_probs(cpu.advance(state, last)),
            "next device": lambda: device.next_log_probs(device.advance(device_state, last)),
            "score cpu": lambda: score_sequences(cpu, start, tokens, lengths),
            "score device": lambda: score_sequences(device, device_start, tokens, lengths),
        }
    )
    scored = {name: lengths.sum() / value for name, value in seconds.items()}
    print(
        f"  {batch:5} {1000 * seconds['next cpu']:11.3f} {1000 * seconds['next device']:9.3f}"
        f" {seconds['next cpu'] / seconds['next device']:8.2f}x"
        f" {scored['score cpu'] / 1e6:14.3f} {scored['score device'] / 1e6:9.3f}"
        f" {seconds['score cpu'] / seconds['score device']:8.2f}x",
        flush=True,
    )


def bench_batches(title: str, cpu: LanguageModel, device: LanguageModel, texts: list[list[int]]) -> None:
    print(title)
    print("  batch   ms, next: cpu    device     ratio   M tokens/s: cpu   device     ratio")
    for batch in BATCHES:
        bench(cpu, device, texts, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=100_000, help="number of training sentences")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", choices=["ngram", "lstm"])
    arguments = parser.parse_args()
    device = arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        leave_out("there is no CUDA device (--device cpu shows that it works)")
    print(f"device: {torch.cuda.get_device_name() if device == 'cuda' else 'torch on the CPU'}")
    texts = novels_or_documentation(data_folder(), arguments.sentences)
    train, test = ([WORD.findall(line.lower()) for line in texts[split]] for split in ("train", "test"))
    if arguments.only != "lstm":
        for size in VOCABULARIES:
            vocabulary = vocabulary_of(train, size)
            corpus = EncodedCorpus.from_sentences(encode(train, vocabulary))
            model = estimate(corpus, vocabulary, order=ORDER, progress=Progress()).model
            title = f"n-grams, V = {size:,}, order {ORDER}, {model.automaton.num_arcs:,} n-grams"
            bench_batches(
                title, model, TensorNGramModel(model, device=device), encode(test[:2000], vocabulary)
            )
    if arguments.only != "ngram":
        vocabulary = vocabulary_of(train, LSTM_VOCABULARY)
        for name, (layers, embedding_size, hidden_size) in LSTMS.items():
            torch.manual_seed(0)
            config = NetworkConfig(layers=layers, embedding_size=embedding_size, hidden_size=hidden_size)
            network = Network(config, len(vocabulary))
            int8 = Int8Model(network.weights(), vocabulary)
            moved = NeuralModel(network, vocabulary, device=device)
            title = f"LSTM {name}, V = {LSTM_VOCABULARY:,}: int8 on the CPU, float32 on the device"
            bench_batches(title, int8, moved, encode(test[:2000], vocabulary))


if __name__ == "__main__":
    main()
