"""Components of a training run, validation and best weights, and their state for resuming."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.errors import InvalidInputError
from models.language_model import perplexity, score_sequences
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.neural.weights import is_rank
from models.vocabulary import BOS, EOS, Vocabulary
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.neural.distributed import Processes
from training.neural.embeddings import Embeddings, initialise_embeddings
from training.neural.losses.sampled import make_loss
from training.neural.optimization import (
    DropoutSchedule,
    OutputPenalties,
    Schedule,
    WeightAverage,
    make_optimizer,
)
from training.neural.resume import check_same_structure, text_hash
from training.neural.settings import TrainSettings
from training.neural.soft_targets import SoftTargets
from training.neural.streams import Streams
from training.progress import SILENT, HistoryRecord
from training.recipe import Recipe


@dataclass
class BestWeights:
    """Weights of the lowest validation perplexity.

    Attributes:
        perplexity: lowest perplexity.
        failures: number of consecutive validations without improvement.
        weights: weights of the network by name; None before the first validation.
    """

    perplexity: float = math.inf
    failures: int = 0
    weights: dict[str, Tensor] | None = None

    def update(self, perplexity: float, network: Network, *, counts: bool = True) -> None:
        """Record a validation.

        Args:
            perplexity: result of the validation.
            network: the validated network.
            counts: count a result without improvement as a failure.
        """
        if perplexity < self.perplexity:
            self.perplexity = perplexity
            self.failures = 0
            self.weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        else:
            self.failures += counts

    def apply(self, network: Network) -> None:
        """Load the best weights into the network; without a validation, leave it unchanged."""
        if self.weights is not None:
            network.load_state_dict(self.weights)


_CPU_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def training_precision(settings: TrainSettings, device: torch.device) -> torch.dtype:
    """Return the type of the settings; for `auto`, bfloat16 if the device has instructions for it.

    Raises:
        InvalidInputError: bfloat16 on a CPU without AVX-512, where torch has no bfloat16 LSTM.
    """
    if settings.precision == "auto":
        if device.type == "cuda":
            is_native = torch.cuda.get_device_capability(device) >= (8, 0)
        else:
            # missing in older versions of torch
            capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
            is_native = any(capabilities.get(name, False) for name in _CPU_INSTRUCTIONS)
        return torch.bfloat16 if is_native else torch.float32
    if settings.precision == "float32":
        return torch.float32
    # missing in builds without oneDNN, where torch computes LSTMs itself
    onednn = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    if device.type == "cpu" and onednn is not None and not onednn():
        raise InvalidInputError(
            "train.precision is bfloat16, but this CPU lacks AVX-512; use auto or float32",
            parameter="train.precision",
        )
    return torch.bfloat16


def autocast(precision: torch.dtype, device: torch.device) -> torch.autocast:
    """Return a context manager that computes matrix products in the given type."""
    return torch.autocast(device.type, precision, enabled=precision != torch.float32)


_NUM_ROWS = 16
_MIN_ROW_TOKENS = 256  # in shorter rows, tokens with little context would dominate


class Validation:
    """Perplexity of a fixed sample of the validation text.

    In sentence context, the sample consists of sentences spread over the text. In stream context, it consists
    of a few rows of running text, read in parallel: one row would be slow, many rows would lack context.

    Args:
        corpus: validation text.
        settings: context and size of the sample.
    """

    def __init__(self, corpus: EncodedCorpus, settings: TrainSettings) -> None:
        self._stream = settings.validate_context == "stream"
        self._sentences = sample_sentences(corpus, settings.valid_tokens)
        self._rows = sample_rows(corpus, settings.valid_tokens)

    def perplexity(self, model: NeuralModel) -> float:
        """Compute the perplexity per token; infinite if a probability is 0 or not a number."""
        if not self._stream:
            measured = evaluate(model, self._sentences, progress=SILENT).perplexity or math.inf
        else:
            state = model.advance(model.empty_state(len(self._rows)), self._rows[:, 0])
            tokens = self._rows[:, 1:]
            lengths = np.full(len(tokens), tokens.shape[1])
            scores = score_sequences(model, state, tokens, lengths)[tokens != BOS]
            measured = perplexity(float(scores.sum(dtype="float64")), len(scores)) or math.inf
        return measured if math.isfinite(measured) else math.inf


def sample_sentences(corpus: EncodedCorpus, tokens: int) -> EncodedCorpus:
    """Sample sentences spread over a corpus: about `tokens` predicted tokens, at least one sentence."""
    every = -(-corpus.num_tokens // tokens)
    return EncodedCorpus.from_sentences(
        [corpus.sentence(i).tolist() for i in range(0, corpus.num_sentences, every)]
    )


def sample_rows(corpus: EncodedCorpus, tokens: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Sample rows of running text [R, T] spread over a corpus, up to about `tokens` tokens in total."""
    text = corpus.with_boundaries().astype(np.int64)
    count = max(1, min(_NUM_ROWS, min(len(text), tokens) // _MIN_ROW_TOKENS))
    width = max(2, min(len(text), tokens) // count)
    starts = np.linspace(0, len(text) - width, count).astype(np.int64)
    return np.asarray(text[starts[:, None] + np.arange(width)])


def copy_weights(base: Network, network: Network) -> None:
    """Copy the weights of a network into one of the same shape, whose vocabulary begins with that of the first.

    Further tokens keep their initial vectors and biases; an adaptive softmax has them in its last cluster.
    """
    given = base.state_dict()
    for name, weights in network.state_dict().items():
        size = len(given[name])
        weights[:size] = given[name]
        if is_rank(name):
            weights[size:] = torch.arange(size, len(weights))


STOP_REQUESTED = ("interrupted", "terminated")
"""Stop reasons from outside the run, which continues when it is resumed."""


class TrainingRun:
    """Components and state of a run; see `train_network` for the arguments.

    Attributes:
        identity: hashes and recipe keys, by the names used in messages.
        rows: rows of each batch that belong to this process.
        hidden: recurrent state carried from segment to segment.
        step: number of updates.
        tokens: number of training tokens seen.
        done: completed share of the run.
        loss: smoothed loss of the last updates; NaN before the first update.
        stopped: reason for the end; empty while the run continues.
        notes: messages for the user.
        soft_targets: distributions of the teachers; None without teachers.
    """

    def __init__(
        self,
        train: EncodedCorpus,
        valid: EncodedCorpus,
        vocabulary: Vocabulary,
        recipe: Recipe,
        *,
        device: torch.device,
        clock: Callable[[], float],
        embeddings: Embeddings | None,
        base: Network | None = None,
        soft_targets: SoftTargets | None = None,
    ) -> None:
        settings, seed = recipe.train, recipe.seed
        self.identity = {
            "the tokenizer": vocabulary.fingerprint,
            "the training text": text_hash(train),
            "the validation text": text_hash(valid),
            "seed": seed,
            **{f"neural.{key}": value for key, value in recipe.neural.model_dump(mode="json").items()},
            **{f"train.{key}": value for key, value in settings.model_dump(mode="json").items()},
            **({} if soft_targets is None else {"the teacher": soft_targets.path.stem}),
        }
        self.settings = settings
        self.device = device
        self.vocabulary = vocabulary
        self.validation = Validation(valid, settings)
        self.streams = Streams(train, settings, seed=seed)
        self.processes = Processes.current()
        self.rows = self.processes.rows(self.streams.batch_size)
        network = recipe.neural.model_copy(update={"self_normalised": settings.self_normalises})
        self.network = Network(network, len(vocabulary)).to(device)
        self.processes.divide_dropout(self.network)
        occurrences = np.bincount(train.tokens, minlength=len(vocabulary)) + 1.0
        occurrences[EOS] += train.num_sentences
        counts = torch.as_tensor(occurrences, dtype=torch.float32)  # of targets, plus one [V]
        self.network.output.initialise_from_counts(counts)
        if embeddings is not None:
            initialise_embeddings(self.network, embeddings)
        if base is not None:
            copy_weights(base, self.network)
        self.processes.broadcast_weights(self.network)
        self.optimizer = make_optimizer(self.network, settings)
        self.average = WeightAverage(self.network, settings)
        self.dropout = DropoutSchedule(self.network, start=settings.dropout_start)
        self.penalties = OutputPenalties(self.network, settings)
        self.criterion = make_loss(settings, self.network.output, counts.to(device), seed=seed)
        self.precision = training_precision(settings, device)
        self.schedule = Schedule(settings, steps_per_epoch=self.streams.steps_per_epoch, clock=clock)
        self.best = BestWeights()
        self.history: list[HistoryRecord] = []
        self.hidden = self.network.initial_hidden(self.rows.stop - self.rows.start)
        self.step = self.tokens = 0
        self.done = 0.0
        self.loss = math.nan
        self.stopped = ""
        self.notes: list[str] = []
        self.soft_targets = soft_targets

    def state(self) -> dict[str, Any]:
        """Return the state for resuming; every process must call it, because it gathers hidden states."""
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
            "best": dict(vars(self.best)),
            "hidden": list(self.processes.gather_hidden(tuple(part.detach() for part in self.hidden))),
            "history": [list(record) for record in self.history],
            "generators": {"cpu": torch.get_rng_state(), "cuda": cuda},
        }

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that a state fits this run; every process must call it.

        Raises:
            KeyError, TypeError, ValueError: the state does not fit.
        """
        own = self.state()
        check_same_structure(state, own, "state")
        if (weights := state["best"]["weights"]) is not None:
            check_same_structure(weights, dict(own["network"]), "best.weights")
            if differing := weights.keys() ^ own["network"].keys():
                raise ValueError(f"best.weights and the network differ in {min(differing, key=str)}")
        if state["average"]["averages"]:
            parameters = [parameter.data for parameter in self.network.parameters()]
            check_same_structure(state["average"]["averages"], parameters, "average.averages")

    def resume_from(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.step, self.tokens, self.done = state["step"], state["tokens"], state["done"]
        self.loss, self.stopped = state["loss"], state["stopped"]
        self.schedule.resume_from(state["seconds"])
        self.network.load_state_dict(state["network"])
        self.average.restore(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.criterion.restore(state["criterion"])
        self.best = BestWeights(**state["best"])
        self.hidden = tuple(part[:, self.rows].to(self.device) for part in state["hidden"])
        self.history = [HistoryRecord(*values) for values in state["history"]]
        torch.set_rng_state(state["generators"]["cpu"])
        if self.device.type == "cuda" and state["generators"]["cuda"] is not None:
            torch.cuda.set_rng_state(state["generators"]["cuda"], self.device)
