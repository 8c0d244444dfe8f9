"""Training, scoring and stepping speed of recurrent models, beside bare torch loops of the same shape.

    python tests/benchmarks/bench_recurrent.py [--cell gru] [--hidden-size 512] [--vocab-size 4096]

Every figure is printed with its ratio to the bare loop measured in the same run; on a shared
machine only the ratios are meaningful. Nothing is written.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from models.language_model import Vocabulary, pad_sequences, score_sequences
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from training.corpus import EncodedCorpus
from training.neural.settings import TrainSettings
from training.neural.trainer import train_network
from training.progress import Progress
from training.recipe import Recipe

EMBEDDING_SIZE = 256
BATCH_SIZE, BPTT_LENGTH, UPDATES = 32, 32, 30


def median_seconds(work, repeats=7):
    """Return the median of some runs, after one warm-up."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


class Bare(nn.Module):
    """Bare embedding, nn.LSTM or nn.GRU, and tied output."""

    def __init__(self, config, vocab_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.embedding_size)
        self.recurrent = getattr(nn, config.cell.upper())(config.embedding_size, config.hidden_size)
        self.narrow = nn.Linear(config.hidden_size, config.embedding_size)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, tokens, hidden=None):
        outputs, hidden = self.recurrent(self.embedding(tokens), hidden)
        return functional.linear(self.narrow(outputs), self.embedding.weight, self.bias), hidden


def bare_training(config, vocab_size):
    """Return the tokens per second of a float32 loop with AdamW."""
    network = Bare(config, vocab_size)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    text = torch.randint(3, vocab_size, (BPTT_LENGTH + 1, BATCH_SIZE))

    def updates():
        for _ in range(UPDATES):
            optimizer.zero_grad()
            logits, _ = network(text[:-1])
            functional.cross_entropy(logits.flatten(0, 1), text[1:].flatten()).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()

    return UPDATES * BATCH_SIZE * BPTT_LENGTH / median_seconds(updates, repeats=3)


def our_training(config, vocabulary, precision):
    """Return the tokens per second of the trainer, its validation (one short sentence) included."""
    ids = np.random.default_rng(0).integers(3, len(vocabulary), BATCH_SIZE * (BPTT_LENGTH + 1) * UPDATES)
    text = EncodedCorpus.from_sentences(ids.reshape(-1, 20))
    settings = TrainSettings(
        batch_size=BATCH_SIZE,
        bptt_length=BPTT_LENGTH,
        max_steps=UPDATES,
        max_minutes=None,
        validations=1,
        valid_tokens=1,
        precision=precision,
    )

    def run():
        train_network(
            text,
            text,
            vocabulary,
            Recipe(family="neural", neural=config, train=settings),
            device="cpu",
            progress=Progress(),
        )

    return UPDATES * BATCH_SIZE * BPTT_LENGTH / median_seconds(run, repeats=3)


def compare_training(config, vocabulary):
    bare = bare_training(config, len(vocabulary))
    print(f"training, bare loop, float32      {bare:10,.0f} tokens/s")
    for precision in ("float32", "bfloat16"):
        ours = our_training(config, vocabulary, precision)
        print(f"training, {precision:8s}                {ours:10,.0f} tokens/s   {ours / bare:5.2f} x bare")


def compare_scoring(model, bare):
    generator = np.random.default_rng(1)
    size = len(model.vocabulary)
    sentences = [generator.integers(3, size, n) for n in generator.integers(5, 40, 128)]
    tokens, lengths = pad_sequences(sentences)
    batched = len(sentences) / median_seconds(
        lambda: score_sequences(model, model.initial_state(128), tokens, lengths)
    )

    def one_by_one():
        for sentence in sentences[:16]:
            score_sequences(model, model.initial_state(1), sentence[None], np.array([len(sentence)]))

    def bare_loop():
        with torch.inference_mode():
            for sentence in sentences[:16]:
                logits, _ = bare(torch.as_tensor(sentence)[:, None])
                logits.log_softmax(-1)

    alone = 16 / median_seconds(one_by_one)
    looped = 16 / median_seconds(bare_loop)
    print(f"scoring, bare loop, one by one    {looped:10,.0f} sentences/s")
    print(f"scoring, one by one               {alone:10,.0f} sentences/s {alone / looped:5.2f} x bare")
    print(f"scoring, batch of 128             {batched:10,.0f} sentences/s {batched / looped:5.2f} x bare")


def compare_steps(model, bare):
    for batch in (1, 32, 128):
        tokens = np.full(batch, 5)
        ids = torch.as_tensor(tokens)[None]
        state = model.initial_state(batch)
        _, *cell = state.hidden  # after the body's last output
        hidden = tuple(cell) if model.family == "lstm" else cell[0]

        def ours(state=state, tokens=tokens):
            model.next_log_probs(model.advance(state, tokens))

        def theirs(ids=ids, hidden=hidden):
            with torch.inference_mode():
                bare(ids, hidden)[0][0].log_softmax(-1)

        got, want = median_seconds(ours, repeats=50), median_seconds(theirs, repeats=50)
        print(
            f"step of {batch:3d} rows, bare {want * 1e6:8,.0f} µs, ours {got * 1e6:8,.0f} µs   {want / got:5.2f} x bare"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", choices=("lstm", "gru"), default="lstm")
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = NetworkConfig(
        cell=options.cell, embedding_size=EMBEDDING_SIZE, hidden_size=options.hidden_size, dropout=0.0
    )
    vocabulary = Vocabulary([f"w{i}" for i in range(options.vocab_size - 3)])
    print(
        f"{config.cell}, hidden {config.hidden_size}, V {len(vocabulary)}, {torch.get_num_threads()} threads"
    )
    compare_training(config, vocabulary)
    model = NeuralModel(Network(config, len(vocabulary)), vocabulary)
    bare = Bare(config, len(vocabulary)).eval()
    compare_scoring(model, bare)
    compare_steps(model, bare)


if __name__ == "__main__":
    main()
