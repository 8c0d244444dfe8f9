"""Speed of int8 inference on a CPU, beside our float32 and a bare torch loop of the same shape.

    python tests/benchmarks/bench_int8.py [--layers 2] [--hidden-size 512] [--vocab-size 16000]

Figures are medians of alternating stretches, with their ratios; on a shared machine only the ratios
are meaningful. Float32 computes in `--threads` threads, int8 in one. Nothing is written.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from torch import nn

from models.language_model import pad_sequences, score_sequences
from models.neural.config import NetworkConfig
from models.neural.model import Int8Model, NeuralModel
from models.neural.network import Network
from models.vocabulary import Vocabulary

STRETCH = 5
"""Consecutive runs of a model: after the first, the CPU caches hold its own data."""


class Bare:
    """Bare nn.Embedding, nn.LSTM and a tied softmax."""

    def __init__(self, network):
        config = network.config
        self.embedding = network.embedding.weight.detach()
        self.recurrent = nn.LSTM(config.embedding_size, config.hidden_size, config.layers)
        self.bias = torch.zeros(len(self.embedding))
        self.hidden = None

    @torch.inference_mode()
    def __call__(self, tokens, hidden):
        outputs, hidden = self.recurrent(self.embedding[tokens], hidden)
        return torch.log_softmax(outputs @ self.embedding.T + self.bias, dim=-1), hidden


def compare(title, rivals, repeats):
    """Run the rivals in turn; print each median and the speed-up of the last rival."""
    times = {name: [] for name in rivals}
    for turn in range(repeats + 2):
        for name, work in rivals.items():
            started = time.perf_counter()
            for _ in range(STRETCH):
                work()
            if turn >= 2:
                times[name].append((time.perf_counter() - started) / STRETCH)
    medians = {name: statistics.median(values) for name, values in times.items()}
    *others, ours = medians
    figures = "   ".join(
        f"{name} {medians[name] * 1e6:9,.0f} µs ({medians[name] / medians[ours]:5.1f} x)" for name in others
    )
    print(f"{title:28s} int8 {medians[ours] * 1e6:9,.0f} µs   {figures}")


def stepper(model, batch):
    """Return a function that advances the model by one step and returns the distribution."""
    random = np.random.default_rng(0)
    state = model.initial_state(batch)

    def step():
        nonlocal state
        state = model.advance(state, random.integers(3, len(model.vocabulary), batch))
        return model.next_log_probs(state)

    return step


def bare_stepper(bare, batch):
    random = np.random.default_rng(0)
    hidden = None

    def step():
        nonlocal hidden
        log_probs, hidden = bare(
            torch.as_tensor(random.integers(3, len(bare.embedding), batch))[None], hidden
        )
        return log_probs

    return step


def compare_scoring(model, quantized, bare, count):
    """Compare scoring of sentences of 20 tokens."""
    tokens, lengths = pad_sequences(np.random.default_rng(0).integers(3, len(model.vocabulary), (count, 20)))
    ids = torch.as_tensor(tokens.T.copy())
    compare(
        f"{count} sentences of 20 tokens",
        {
            "bare": lambda: bare(ids, None)[0].gather(-1, ids[..., None]),
            "float32": lambda: score_sequences(model, model.initial_state(count), tokens, lengths),
            "int8": lambda: score_sequences(quantized, quantized.initial_state(count), tokens, lengths),
        },
        repeats=3,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--vocab-size", type=int, default=16000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = options.hidden_size
    vocabulary = Vocabulary([f"w{i}" for i in range(options.vocab_size - 3)])
    network = Network(
        NetworkConfig(layers=options.layers, embedding_size=size, hidden_size=size), options.vocab_size
    )
    model, quantized = NeuralModel(network, vocabulary), Int8Model(network, vocabulary)
    bare = Bare(network)
    for batch, repeats in ((1, 30), (16, 10), (64, 5)):
        compare(
            f"step of {batch} rows",
            {
                "bare": bare_stepper(bare, batch),
                "float32": stepper(model, batch),
                "int8": stepper(quantized, batch),
            },
            repeats,
        )
    for count in (1, 16, 128):
        compare_scoring(model, quantized, bare, count)


if __name__ == "__main__":
    main()
