"""Training an LSTM beside a plain torch loop of the same shape, in one run: read the ratios.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_training.py [--epochs 1] [--hidden-size 512]

The loop is the obvious one: nn.Embedding, nn.LSTM, nn.Dropout, a tied nn.functional.linear
over the full vocabulary, cross_entropy, AdamW, all in float32. Both read the same stretches of the same
text with the same learning rates, so perplexities after the same number of updates compare. Without the
public data the text is random words, and perplexities are meaningless. Nothing is written.
"""

import argparse
import math
import time

import numpy as np
import torch
from preparation import data_folder
from torch import nn
from torch.nn import functional

from models.language_model import BOS
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from training.corpus import EncodedCorpus, read_corpus
from training.evaluation.evaluate import evaluate
from training.neural.run import Schedule
from training.neural.settings import TrainSettings
from training.neural.streams import Streams
from training.neural.trainer import train_network
from training.progress import Progress
from training.recipe import Recipe
from training.tokenizer import TokenizerSettings, encode_corpus, learn_tokenizer

DROPOUT = 0.35
WORDS = 10_000


class Plain(nn.Module):
    """Embedding, nn.LSTM, tied output."""

    def __init__(self, vocab_size, size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.lstm = nn.LSTM(size, size)
        self.dropout = nn.Dropout(DROPOUT)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, tokens, hidden):
        outputs, hidden = self.lstm(self.dropout(self.embedding(tokens)), hidden)
        return functional.linear(self.dropout(outputs), self.embedding.weight, self.bias), hidden


def train_plainly(texts, vocabulary, settings, size):
    """Run the loop; return its weights in our model, for an equal evaluation, and tokens per second."""
    network = Plain(len(vocabulary), size)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=settings.weight_decay)
    known = settings.model_copy(update={"unknown_share": 0.0})
    streams = Streams(texts[0], known, seed=1)
    schedule = Schedule(settings, steps_per_epoch=streams.steps_per_epoch, clock=lambda: 0.0)
    zeros = torch.zeros(1, streams.batch_size, size)
    hidden = (zeros, zeros)
    started, tokens = time.perf_counter(), 0
    for step, stretch in enumerate(streams.segments(settings.epochs)):
        hidden = (zeros, zeros) if stretch.first else (hidden[0].detach(), hidden[1].detach())
        inputs, targets = torch.as_tensor(stretch.inputs), torch.as_tensor(stretch.targets)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate(schedule.done(step, seconds=0.0))
        optimizer.zero_grad()
        logits, hidden = network(inputs, hidden)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=BOS)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), settings.clip_norm)
        optimizer.step()
        tokens += inputs.numel()
    rate = tokens / (time.perf_counter() - started)
    config = NetworkConfig(embedding_size=size, hidden_size=size)
    ours = Network(config, len(vocabulary))
    names = {"embedding.weight": network.embedding.weight, "output.bias": network.bias}
    names |= {f"body.cells.0.kernel.{name}": value for name, value in network.lstm.named_parameters()}
    ours.load_state_dict({**ours.state_dict(), **names, "output.weight": network.embedding.weight})
    return NeuralModel(ours, vocabulary), rate


def train_ours(texts, vocabulary, settings, size):
    """Run the trainer; its one validation of a few tokens is included."""
    config = NetworkConfig(embedding_size=size, hidden_size=size, dropout=DROPOUT)
    started = time.perf_counter()
    result = train_network(
        texts[0],
        texts[1],
        vocabulary,
        Recipe(family="neural", neural=config, train=settings),
        device="cpu",
        progress=Progress(),
    )
    return result.model, result.history[-1].tokens / (time.perf_counter() - started)


def texts_of(words_at_most):
    """Return training and validation text, encoded, and their vocabulary."""
    folder = data_folder()
    if folder is None:
        lines = [
            " ".join(f"w{i}" for i in row) for row in np.random.default_rng(0).zipf(1.3, (10_000, 20)) % WORDS
        ]
        sentences = [lines[:-500], lines[-500:]]
    else:
        data = folder / "novels-1m"
        sentences = [
            read_corpus([data / f"{split}.txt.xz"], unit="line", progress=Progress()).sentences
            for split in ("train", "valid")
        ]
    sentences[0] = sentences[0][: int(words_at_most * len(sentences[0]))]
    tokenizer = learn_tokenizer(TokenizerSettings(kind="word"), sentences[0], progress=Progress())
    encoded: list[EncodedCorpus] = [encode_corpus(tokenizer, part, progress=Progress()) for part in sentences]
    return encoded, tokenizer.vocabulary


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--share", type=float, default=0.2, help="share of the training text")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts, vocabulary = texts_of(options.share)
    settings = TrainSettings(
        max_minutes=None,
        epochs=options.epochs,
        batch_size=32,
        bptt_length=35,
        reset=0.0,
        learning_rate=3e-3,
        validations=1,
        valid_tokens=500,
    )
    print(
        f"LSTM of {options.hidden_size}, tied, V {len(vocabulary):,}, {texts[0].num_tokens:,} tokens, "
        f"{options.epochs} epochs, {options.threads} threads"
    )
    rates, perplexities = [], []
    for name, work in (("plain loop, float32", train_plainly), ("trainer", train_ours)):
        torch.manual_seed(1)
        model, rate = work(texts, vocabulary, settings, options.hidden_size)
        logprob = evaluate(model, texts[1], context="stream", progress=Progress())
        rates.append(rate)
        perplexities.append(logprob.perplexity or math.inf)
        print(
            f"{name:20s} {rate:10,.0f} tokens/s  {rate / rates[0]:5.2f} x   valid perplexity {perplexities[-1]:8.2f} "
            f"({100 * (perplexities[-1] / perplexities[0] - 1):+.1f} %)"
        )


if __name__ == "__main__":
    main()
