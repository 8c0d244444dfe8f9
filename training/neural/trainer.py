"""The trainer of neural networks: truncated back-propagation over streams with carried state.

From top to bottom: network, optimiser, schedule, loop. A run keeps the weights of its best
validation, and gives them back however it ends, an interrupt from the keyboard included.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from models.errors import InvalidInputError
from models.neural.config import NetworkConfig
from models.neural.device import resolve_device
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.vocabulary import EOS, Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.evaluation import evaluate
from training.neural.backward import backward
from training.neural.best import BestWeights
from training.neural.history import HistoryRecord
from training.neural.losses.full_softmax import FullSoftmax
from training.neural.precision import autocast, training_precision
from training.neural.schedule import Schedule
from training.neural.settings import TrainSettings
from training.neural.stream import Streams, Stretch
from training.progress import Progress, Silent

_RECORDS_PER_VALIDATION = 10
_SMOOTHING = 0.98


class TrainingResult(NamedTuple):
    """What came of a run.

    Attributes:
        model: with the weights of the best validation.
        history: from the first update to the last.
        stopped: why it ended: `max_minutes`, `max_steps`, `epochs`, `patience` or `interrupted`.
    """

    model: NeuralModel
    history: list[HistoryRecord]
    stopped: str


def train_network(
    train: EncodedCorpus,
    valid: EncodedCorpus,
    vocabulary: Vocabulary,
    *,
    network: NetworkConfig,
    settings: TrainSettings,
    seed: int,
    device: str,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> TrainingResult:
    """Train a network.

    The same seed and number of updates give the same weights, bit by bit, on the same CPU with
    the same number of threads. A bound in minutes makes the number of updates vary: set
    `max_steps` or `epochs` where that matters.

    Args:
        train: the text to learn from.
        valid: the text that decides which weights are best.
        vocabulary: the one that encoded both.
        network: the network's shape.
        settings: length, optimiser and bookkeeping.
        seed: of weights, dropout and the order of the text.
        device: `cpu`, `cuda`, `cuda:1`, … or `auto`.
        progress: told of per cents.
        clock: seconds that only grow.

    Raises:
        InvalidInputError: a text is empty, there is no such device, or the training diverged.
    """
    if not valid.num_sentences:
        raise InvalidInputError("the validation text has no sentences", parameter="valid")
    place = resolve_device(device)
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        run = _Run(train, valid, vocabulary, network, settings, seed, place, clock)
        progress.start(f"training {network.cell.upper()}", 100.0)
        stopped = run.until_done(progress)
        progress.finish()
    run.best.restore(run.network)
    return TrainingResult(NeuralModel(run.network, vocabulary, device=str(place)), run.history, stopped)


class _Run:
    """One run's moving parts."""

    def __init__(
        self,
        train: EncodedCorpus,
        valid: EncodedCorpus,
        vocabulary: Vocabulary,
        config: NetworkConfig,
        settings: TrainSettings,
        seed: int,
        device: torch.device,
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.device = device
        self.vocabulary = vocabulary
        self.valid = _sample(valid, settings.valid_tokens)
        self.streams = Streams(
            train, batch_size=settings.batch_size, bptt_length=settings.bptt_length, seed=seed
        )
        self.network = Network(config, len(vocabulary)).to(device)
        _start_from_counts(self.network, train)
        self.optimizer = _optimizer(self.network, settings)
        self.criterion = FullSoftmax()
        self.precision = training_precision(settings, device)
        self.schedule = Schedule(settings, steps_per_epoch=self.streams.steps_per_epoch, clock=clock)
        self.best = BestWeights(patience=settings.patience)
        self.history: list[HistoryRecord] = []
        self.hidden = self.network.zero_hidden(self.streams.batch_size)
        self.step = self.tokens = 0
        self.loss = math.nan  # smoothed

    def until_done(self, progress: Progress) -> str:
        """Update until a bound, patience or the user ends it; say which."""
        validations = self.settings.validations
        done = 0.0
        try:
            for stretch in self.streams.stretches(self.settings.epochs):
                rate = self.schedule.learning_rate(done)
                norm = self._update(stretch, rate)
                before, done = done, self.schedule.done(self.step)
                perplexity = self._validate() if _crosses(before, done, validations) else None
                if _crosses(before, done, _RECORDS_PER_VALIDATION * validations):
                    self._record(stretch.epoch, perplexity, rate, norm)
                progress.advance(100 * (done - before), self._note())
                if self.best.exhausted:
                    return "patience"
                if done >= 1:
                    break
        except KeyboardInterrupt:
            return "interrupted"
        return self.schedule.reached(self.step)

    def _update(self, stretch: Stretch, rate: float) -> float:
        """One step of the optimiser; returns the gradient's norm before clipping."""
        self._carry(first=stretch.first)
        inputs, targets = (
            torch.as_tensor(ids, device=self.device) for ids in (stretch.inputs, stretch.targets)
        )
        self.optimizer.zero_grad()
        with autocast(self.precision, self.device):
            outputs, self.hidden = self.network(inputs, self.hidden)
        loss = backward(self.network, outputs, targets, self.criterion, precision=self.precision)
        norm = float(nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip_norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise InvalidInputError(
                f"the training diverged at step {self.step + 1}: the loss is {loss}, the gradient's norm {norm}, "
                f"with train.learning_rate {self.settings.learning_rate:g}: try a third of it",
                parameter="train.learning_rate",
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.step += 1
        self.tokens += inputs.numel()
        self.loss = loss if math.isnan(self.loss) else _SMOOTHING * self.loss + (1 - _SMOOTHING) * loss
        return norm

    def _carry(self, *, first: bool) -> None:
        """Cut the carried state off from the past; at random, and at an epoch's start, empty it."""
        keep = 0.0 if first else 1 - self.settings.reset
        kept = torch.bernoulli(torch.full((1, self.streams.batch_size, 1), keep)).to(self.device)
        self.hidden = tuple(part.detach() * kept for part in self.hidden)

    def _validate(self) -> float:
        """Perplexity per token of the validation text, in sentence context."""
        model = NeuralModel(self.network, self.vocabulary, device=str(self.device))
        perplexity = evaluate(model, self.valid, progress=Silent()).perplexity or math.inf
        self.network.train()
        self.best.offer(perplexity, self.network)
        return perplexity

    def _record(self, epoch: int, perplexity: float | None, rate: float, norm: float) -> None:
        perplexity = None if perplexity == math.inf else perplexity
        self.history.append(
            HistoryRecord(
                self.step, epoch, self.tokens, self.schedule.seconds, self.loss, perplexity, rate, norm
            )
        )

    def _note(self) -> str:
        best = "" if math.isinf(self.best.perplexity) else f", valid ppl {self.best.perplexity:.1f}"
        return f"loss {self.loss:.2f}{best}, {self.tokens / max(self.schedule.seconds, 1e-9):,.0f} tokens/s"


def _crosses(before: float, after: float, marks: int) -> bool:
    """Whether one of so many even marks lies in (before, after]."""
    return int(before * marks) < int(after * marks)


def _sample(corpus: EncodedCorpus, tokens: int) -> EncodedCorpus:
    """Sentences from all over a corpus, of about so many tokens to predict, one at least."""
    every = -(-corpus.num_tokens // tokens)
    return EncodedCorpus.from_sentences(
        [corpus.sentence(i).tolist() for i in range(0, corpus.num_sentences, every)]
    )


def _start_from_counts(network: Network, corpus: EncodedCorpus) -> None:
    """Start the output layer from the tokens' frequencies."""
    counts = np.bincount(corpus.tokens, minlength=network.vocab_size) + 1.0
    counts[EOS] += corpus.num_sentences
    network.output.start_from_counts(torch.as_tensor(counts, dtype=torch.float32))


def _optimizer(network: Network, settings: TrainSettings) -> torch.optim.Optimizer:
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
    return torch.optim.AdamW(
        network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
