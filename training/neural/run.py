"""All that a training run is made of, and how it becomes tensors, numbers and text and comes back."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.neural.config import NetworkConfig
from models.neural.network import Network
from models.vocabulary import EOS, Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.embeddings import Embeddings, initialise_embeddings
from training.neural.averaging import WeightAverage
from training.neural.best import BestWeights
from training.neural.distributed import Processes
from training.neural.growing_dropout import DropoutSchedule
from training.neural.history import HistoryRecord
from training.neural.losses.choice import make_loss
from training.neural.optimizers import make_optimizer
from training.neural.penalties import OutputPenalties
from training.neural.precision import training_precision
from training.neural.resume import check_same_structure
from training.neural.schedule import Schedule
from training.neural.settings import TrainSettings
from training.neural.stream import Streams
from training.neural.validation import Validation

STOP_REQUESTED = ("interrupted", "terminated")
"""Ends of a run that are not its own: resumed, it goes on."""


class TrainingRun:
    """A run's moving parts; see `train_network` for the arguments.

    Attributes:
        rows: this process's part of each batch.
        hidden: what is carried from stretch to stretch.
        step: updates made.
        tokens: of training text seen.
        done: share of the run behind it.
        loss: of the last updates, smoothed; not a number before the first.
        stopped: why it ended; empty while it has not.
        notes: what the user should know.
    """

    def __init__(
        self,
        train: EncodedCorpus,
        valid: EncodedCorpus,
        vocabulary: Vocabulary,
        *,
        network: NetworkConfig,
        settings: TrainSettings,
        seed: int,
        device: torch.device,
        clock: Callable[[], float],
        embeddings: Embeddings | None,
    ) -> None:
        self.settings = settings
        self.device = device
        self.vocabulary = vocabulary
        self.validation = Validation(valid, settings)
        self.streams = Streams(
            train,
            batch_size=settings.batch_size,
            bptt_length=settings.bptt_length,
            variable=settings.variable_bptt,
            seed=seed,
        )
        self.processes = Processes.current()
        self.rows = self.processes.rows(self.streams.batch_size)
        network = network.model_copy(update={"self_normalised": settings.self_normalises})
        self.network = Network(network, len(vocabulary)).to(device)
        if embeddings is not None:
            initialise_embeddings(self.network, embeddings)
        self.processes.divide_dropout(self.network)
        counts = _target_counts(train, len(vocabulary))
        self.network.output.initialise_from_counts(counts)
        self.processes.broadcast_weights(self.network)
        self.optimizer = make_optimizer(self.network, settings)
        self.average = WeightAverage(self.network, settings)
        self.dropout = DropoutSchedule(self.network, start=settings.dropout_start)
        self.penalties = OutputPenalties(self.network, settings)
        self.criterion = make_loss(settings, self.network.output, counts.to(device), seed=seed)
        self.precision = training_precision(settings, device)
        self.schedule = Schedule(settings, steps_per_epoch=self.streams.steps_per_epoch, clock=clock)
        self.best = BestWeights(patience=settings.patience)
        self.history: list[HistoryRecord] = []
        self.hidden = self.network.initial_hidden(self.rows.stop - self.rows.start)
        self.step = self.tokens = 0
        self.done = 0.0
        self.loss = math.nan
        self.stopped = ""
        self.notes: list[str] = []

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs; every process has to ask, each tells what it carries."""
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return {
            "step": self.step,
            "tokens": self.tokens,
            "done": self.done,
            "seconds": self.schedule.seconds,
            "loss": self.loss,
            "stopped": "" if self.stopped in STOP_REQUESTED else self.stopped,
            "network": self.network.state_dict(),
            "average": self.average.state(),
            "optimizer": self.optimizer.state_dict(),
            "criterion": self.criterion.state(),
            "best": self.best.state(),
            "hidden": list(self.processes.gather_hidden(tuple(part.detach() for part in self.hidden))),
            "history": [list(record) for record in self.history],
            "generators": {"cpu": torch.get_rng_state(), "cuda": cuda},
        }

    def check(self, state: Mapping[str, Any]) -> None:
        """See that a state could be this run's; every process has to ask.

        Raises:
            KeyError, TypeError, ValueError: it could not.
        """
        own = self.state()
        check_same_structure(state, own, "state")
        if state["best"]["weights"] is not None:
            check_same_structure(state["best"]["weights"], dict(own["network"]), "best.weights")
        if state["average"]["averages"]:
            parameters = [parameter.data for parameter in self.network.parameters()]
            check_same_structure(state["average"]["averages"], parameters, "average.averages")

    def resume_from(self, state: Mapping[str, Any]) -> None:
        """Become the run that told its state."""
        self.step, self.tokens, self.done = state["step"], state["tokens"], state["done"]
        self.loss, self.stopped = state["loss"], state["stopped"]
        self.schedule.resume_from(state["seconds"])
        self.network.load_state_dict(state["network"])
        self.average.restore(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.criterion.restore(state["criterion"])
        self.best.restore(state["best"])
        self.hidden = tuple(part[:, self.rows].to(self.device) for part in state["hidden"])
        self.history = [HistoryRecord(*values) for values in state["history"]]
        torch.set_rng_state(state["generators"]["cpu"])
        if self.device.type == "cuda" and state["generators"]["cuda"] is not None:
            torch.cuda.set_rng_state(state["generators"]["cuda"], self.device)


def _target_counts(corpus: EncodedCorpus, vocab_size: int) -> Tensor:
    """How often each token is predicted [V], and once more."""
    counts = np.bincount(corpus.tokens, minlength=vocab_size) + 1.0
    counts[EOS] += corpus.num_sentences
    return torch.as_tensor(counts, dtype=torch.float32)
