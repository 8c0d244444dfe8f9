"""Tokens per second of output layer and loss, forward and backward, beside torch's cross-entropy in float32.

python tests/benchmarks/bench_losses.py [--seconds 3]
"""

import argparse
import statistics
import time

import torch
from torch.nn import functional

from models.language_model import BOS
from models.neural.output import AdaptiveSoftmax, ClusteredEmbedding, Softmax
from training.neural.losses.sampled import (
    NegativeSampling,
    NoiseContrastive,
    NoiseSampler,
    SampledSoftmax,
    noise_weights,
)
from training.neural.losses.softmax import AdaptiveCrossEntropy, FullSoftmax

POSITIONS, WIDTH, SAMPLES = 1120, 512, 2048
CUTOFFS = {10_000: (2_000,), 100_000: (2_000, 20_000)}


def zipf(vocab_size):
    """Frequencies of a language's tokens: 1 / rank."""
    counts = 1e6 / torch.arange(1, vocab_size + 1)
    return counts.index_fill(0, torch.tensor([BOS]), 1e-6)


def torchs(output, features, ids):
    """Run the step of a plain training loop."""
    leaf = features.detach().requires_grad_()
    functional.cross_entropy(output.logits(leaf), ids).backward()


def median_s(step, output, seconds):
    """Return the median seconds of a step, without the first."""
    times = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(times) < 3:
        output.zero_grad()
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def cases(vocab_size, counts):
    """Yield each loss with a layer that it trains."""
    softmax = Softmax(WIDTH, vocab_size, shared=None)
    vectors = ClusteredEmbedding(vocab_size, WIDTH, cutoffs=CUTOFFS[vocab_size])
    adaptive = AdaptiveSoftmax(WIDTH, vectors)
    adaptive.initialise_from_counts(counts)
    sampler = NoiseSampler(noise_weights(counts.numpy(), "unigram"), samples=SAMPLES, seed=1)
    yield "softmax", FullSoftmax(softmax), softmax
    yield "adaptive", AdaptiveCrossEntropy(adaptive), adaptive
    yield "sampled", SampledSoftmax(softmax, sampler), softmax
    yield "nce", NoiseContrastive(softmax, sampler), softmax
    yield "negative-sampling", NegativeSampling(softmax, sampler), softmax


def main():
    """Print a table for each vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="time per case")
    seconds = parser.parse_args().seconds
    torch.manual_seed(1)
    for vocab_size in CUTOFFS:
        counts = zipf(vocab_size)
        ids = torch.multinomial(counts, POSITIONS, replacement=True)
        features = torch.randn(POSITIONS, WIDTH)
        plain = Softmax(WIDTH, vocab_size, shared=None)
        base = median_s(lambda: torchs(plain, features, ids), plain, seconds)  # noqa: B023 - called at once
        print(
            f"\nV = {vocab_size:,}, {POSITIONS:,} positions of width {WIDTH}, {torch.get_num_threads()} threads"
        )
        print(
            f"{'torch cross_entropy':<20}{'float32':<10}{1e3 * base:8.1f} ms{POSITIONS / base:12,.0f} tokens/s"
        )
        for name, loss, output in cases(vocab_size, counts):
            for precision in (torch.float32, torch.bfloat16):
                took = median_s(lambda: loss(features, ids, precision=precision), output, seconds)  # noqa: B023
                kind = str(precision).removeprefix("torch.")
                rate = f"{POSITIONS / took:12,.0f} tokens/s  {base / took:5.1f} times as fast"
                print(f"{name:<20}{kind:<10}{1e3 * took:8.1f} ms{rate}", flush=True)


if __name__ == "__main__":
    main()
