"""Components of a training run, and their state for resuming.

These are optimiser, schedules of learning rate and dropout, averages of weights, penalties of
outputs, validation and best weights. Weights averaged over many updates predict better than those
of one. The penalties are AR and TAR (Merity et al. 2017, "Revisiting activation regularization").
"""

import bisect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from models.errors import InputError
from models.language_model import BOS, EOS, Vocabulary, perplexity, score_sequences
from models.neural.cells import Dropout
from models.neural.config import is_rank
from models.neural.model import NeuralModel
from models.neural.network import Network
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.neural.distributed import Processes
from training.neural.embeddings import Embeddings, initialise_embeddings
from training.neural.losses.sampled import make_loss
from training.neural.settings import TrainSettings
from training.neural.streams import SoftTargets, Streams
from training.neural.threads import ThreadTuner
from training.progress import SILENT, HistoryRecord
from training.recipe import Recipe

_CYCLE_START = 1 / 25  # of the peak, Smith's usual ratio
_MIN_RATE_SHARE = 0.01
_CPU_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
_NUM_ROWS = 16
_MIN_ROW_TOKENS = 256  # in shorter rows, tokens with little context would dominate

STOP_REQUESTED = ("interrupted", "terminated")
"""Stop reasons from outside the run, which resuming continues."""


class Schedule:
    """Progress of a run by updates and time, and its learning rates.

    Args:
        settings: limits of the run and learning-rate schedule.
        steps_per_epoch: updates per pass over the text.
        clock: monotonic clock in seconds.
    """

    def __init__(self, settings: TrainSettings, *, steps_per_epoch: int, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._epoch_steps = settings.epochs * steps_per_epoch
        self._steps = min(self._epoch_steps, settings.max_steps or self._epoch_steps)
        self._clock = clock
        self._started = clock()

    def resume_from(self, seconds: float) -> None:
        """Continue from the run's seconds before its interruption."""
        self._started = self._clock() - seconds

    @property
    def seconds(self) -> float:
        """Seconds since the run began, without pauses."""
        return self._clock() - self._started

    def done(self, step: int, *, seconds: float | None = None) -> float:
        """Return the completed share after `step` updates: of updates or time, the larger."""
        share = step / self._steps
        if self._settings.max_minutes is not None:
            seconds = self.seconds if seconds is None else seconds
            share = max(share, seconds / (60 * self._settings.max_minutes))
        return min(share, 1.0)

    def has_spare_time(self, step: int, seconds: float) -> bool:
        """Return whether updates will end the run in less than half of its minutes, at the speed so far."""
        minutes = self._settings.max_minutes
        return minutes is None or seconds / (60 * minutes) < 0.5 * step / self._steps

    def reached(self, step: int) -> Literal["max_minutes", "max_steps", "epochs"]:
        """Return the limit that ended the run after `step` updates."""
        if step < self._steps:
            return "max_minutes"
        return "epochs" if step >= self._epoch_steps else "max_steps"

    def learning_rate(self, done: float) -> float:
        """Return the learning rate at a share of the run; see `TrainSettings.schedule`."""
        settings, peak = self._settings, self._settings.learning_rate
        if done < settings.warmup:
            lowest = _CYCLE_START if settings.schedule == "one-cycle" else 0.0
            risen = done / settings.warmup
            return peak * max(lowest + (1 - lowest) * risen, _MIN_RATE_SHARE)
        since = (done - settings.warmup) / (1 - settings.warmup)
        if settings.schedule == "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * since))
        if settings.schedule == "one-cycle":
            turn = 1 - settings.anneal  # linear down to 1/25 until here, then to 0
            if done < turn:
                return peak * (1 - (1 - _CYCLE_START) * ((done - settings.warmup) / (turn - settings.warmup)))
            return peak * (_CYCLE_START * (1 - done) / (1 - turn) if turn < 1 else _CYCLE_START)
        if settings.schedule == "step":
            return peak * settings.decay_factor ** bisect.bisect_right(settings.decay_at, done)
        return peak


def make_optimizer(network: nn.Module, settings: TrainSettings) -> Optimizer:
    """Create the settings' optimiser for all parameters.

    Weight decay is for matrices only. Biases, gains of norms and
    learned initial states set levels; decay would only shift outputs.
    """
    groups = [
        {"params": parameters, "weight_decay": decay}
        for is_matrix, decay in ((True, settings.weight_decay), (False, 0.0))
        if (parameters := [p for p in network.parameters() if (p.ndim == 2) == is_matrix])
    ]
    rate = settings.learning_rate
    if settings.optimizer == "sgd":
        return SGD(groups, lr=rate, momentum=settings.momentum, fused=True)
    if settings.optimizer == "rmsprop":
        return RMSprop(groups, lr=rate, momentum=settings.momentum, foreach=True)
    adam = AdamW if settings.optimizer == "adamw" else Adam
    return adam(groups, lr=rate, betas=settings.betas, fused=True)


class WeightAverage:
    """Average of the weights over updates, as the settings select.

    `ema` is an exponential moving average (Polyak and Juditsky 1992, with decay). Its decay
    is at most (1 + t) / (10 + t) after t updates, as the start is random. `nt-asgd`
    is the plain mean of all updates since the first validation worse than the best one more
    than `nonmonotone` validations before it (Merity et al. 2018, algorithm 1).

    Args:
        network: its parameters are copied except by `none`.
        settings: selects the average.

    Attributes:
        updates: updates in the average; 0 before it begins.
    """

    def __init__(self, network: nn.Module, settings: TrainSettings) -> None:
        self.updates = 0
        self._settings = settings
        # not their `data`: cuDNN's modules give parameters new memory whenever moved
        self._parameters: list[Tensor] = list(network.parameters())
        self._averages: list[Tensor] = []
        self._validations: list[float] = []
        self._triggered = False

    @property
    def is_pending(self) -> bool:
        """True until `nt-asgd` begins, which a worse validation starts, not ending the run."""
        return self._settings.average == "nt-asgd" and not self.updates

    @torch.no_grad()
    def add(self, done: float) -> None:
        """Add the weights after an update; `done` is the run's completed share."""
        is_ema = self._settings.average == "ema"
        if not (done >= self._settings.average_start if is_ema else self._triggered):
            return
        if self.updates:
            share = 1 / (self.updates + 1)  # of the plain mean
            if is_ema:
                share = 1 - min(self._settings.average_decay, (1 + self.updates) / (10 + self.updates))
            torch._foreach_lerp_(self._averages, self._parameters, share)
        else:
            self._averages = [param.detach().clone() for param in self._parameters]
        self.updates += 1

    def record_validation(self, perplexity: float) -> None:
        """Record a validation; `nt-asgd` begins when validations stop improving."""
        if self._triggered or self._settings.average != "nt-asgd":
            return
        earlier = self._validations[: -self._settings.nonmonotone]
        self._triggered = bool(earlier) and perplexity > min(earlier)
        self._validations.append(perplexity)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the average, if begun, as the network's weights inside the block."""
        if not self.updates:
            yield
            return
        with torch.no_grad():
            own = [param.clone() for param in self._parameters]
            torch._foreach_copy_(self._parameters, self._averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, own)

    def state(self) -> dict[str, Any]:
        """Return the state for resuming: tensors and numbers."""
        return {
            "updates": self.updates,
            "averages": self._averages,
            "validations": self._validations,
            "triggered": self._triggered,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state`."""
        self.updates = state["updates"]
        pairs = zip(state["averages"], self._parameters, strict=False)
        self._averages = [average.to(param.device) for average, param in pairs]
        self._validations = list(state["validations"])
        self._triggered = state["triggered"]


class OutputPenalties:
    """Penalty α · mean(d²) + β · mean((h_t − h_{t−1})²) on outputs h, where d is h after dropout.

    Backward hooks add closed-form gradients to the loss's, whose reported value excludes them.

    Args:
        network: network with the penalised outputs [T, B, W].
        settings: α, `activation_penalty`, and β, `slowness_penalty`.

    Attributes:
        scale: factor of both terms; 1 unless the process has part of the batch.
    """

    def __init__(self, network: Network, settings: TrainSettings) -> None:
        self.scale = 1.0
        self._activation = settings.activation_penalty
        self._slowness = settings.slowness_penalty
        if self._activation or self._slowness:
            network.output_dropout.register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, given: tuple[Tensor], dropped: Tensor) -> None:
        outputs = given[0]
        if not module.training or not outputs.requires_grad:
            return
        if self._activation:
            activity, share = dropped.detach(), 2 * self.scale * self._activation / dropped.numel()
            add = partial(torch.add, other=activity, alpha=share)
            dropped.register_hook(add)  # type: ignore[no-untyped-call]  # torch ships it untyped
        if self._slowness and len(outputs) > 1:
            add = partial(self._with_slowness, outputs=outputs.detach())
            outputs.register_hook(add)  # type: ignore[no-untyped-call]

    def _with_slowness(self, gradient: Tensor, outputs: Tensor) -> Tensor:
        changes = outputs[1:] - outputs[:-1]
        # derivative of the mean square
        share = 2 * self.scale * self._slowness / changes.numel()
        gradient = gradient.clone()
        gradient[1:].add_(changes, alpha=share)
        gradient[:-1].sub_(changes, alpha=share)
        return gradient


@dataclass
class BestWeights:
    """Weights of the lowest validation perplexity.

    Attributes:
        perplexity: lowest perplexity.
        failures: consecutive validations without improvement.
        weights: the network's weights by name; None before the first validation.
    """

    perplexity: float = math.inf
    failures: int = 0
    weights: dict[str, Tensor] | None = None

    def update(self, perplexity: float, network: Network, *, counts: bool = True) -> None:
        """Record a validation; without improvement, it is a failure if it `counts`."""
        if perplexity < self.perplexity:
            self.perplexity = perplexity
            self.failures = 0
            self.weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        else:
            self.failures += counts


def training_precision(settings: TrainSettings, device: torch.device) -> torch.dtype:
    """Return the settings' type; for `auto`, bfloat16 if the device has instructions for it.

    Raises:
        InputError: bfloat16 on a CPU without AVX-512, where torch has no bfloat16 LSTM.
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
    # missing without oneDNN, where torch computes LSTMs itself
    onednn = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    if device.type == "cpu" and onednn is not None and not onednn():
        problem = "is bfloat16, but this CPU lacks AVX-512; use auto or float32"
        raise InputError.of("train.precision", problem)
    return torch.bfloat16


def autocast(precision: torch.dtype, device: torch.device) -> torch.autocast:
    """Return a context manager for matrix products in the given type."""
    return torch.autocast(device.type, precision, enabled=precision != torch.float32)


class Validation:
    """Perplexity of a fixed sample of the validation text.

    In sentence context, the sample is sentences spread over the text; in stream context,
    of a few rows of running text, read in parallel: one row would be slow, many would lack context.

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
    """Sample sentences spread over a corpus, at least one, of about `tokens` predicted tokens."""
    every = -(-corpus.num_tokens // tokens)
    return EncodedCorpus.from_sentences(
        corpus.sentence(i).tolist() for i in range(0, corpus.num_sentences, every)
    )


def sample_rows(corpus: EncodedCorpus, tokens: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Sample rows of text [R, T] spread over a corpus, up to about `tokens` tokens."""
    text = corpus.with_boundaries().astype(np.int64)
    count = max(1, min(_NUM_ROWS, min(len(text), tokens) // _MIN_ROW_TOKENS))
    width = max(2, min(len(text), tokens) // count)
    starts = np.linspace(0, len(text) - width, count).astype(np.int64)
    return np.asarray(text[starts[:, None] + np.arange(width)])


class TrainingRun:
    """Components and state of a run; see `train_network` for the arguments.

    Attributes:
        identity: hashes and recipe keys, by the names used in messages.
        rows: this process's rows of each batch.
        hidden: recurrent state carried from segment to segment.
        step: number of updates.
        tokens: training tokens seen.
        done: completed share of the run.
        loss: smoothed loss of the last updates; NaN before the first.
        stopped: reason for the end; empty while the run continues.
        notes: messages for the user.
        soft_targets: the teachers' distributions; None without any.
        tuner: adapts the number of threads on a CPU.
    """

    def __init__(
        self,
        train: EncodedCorpus,
        valid: EncodedCorpus,
        vocabulary: Vocabulary,
        recipe: Recipe,
        device: torch.device,
        clock: Callable[[], float],
        embeddings: Embeddings | None,
        base: Network | None = None,
        soft_targets: SoftTargets | None = None,
    ) -> None:
        settings, seed = recipe.train, recipe.seed
        self.identity = {
            "the tokenizer": vocabulary.fingerprint,
            "the training text": train.token_hash(),
            "the validation text": valid.token_hash(),
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
        is_normalising = settings.loss == "nce" and settings.sampled_share == 1
        update = {"self_normalised": settings.self_normalise > 0 or is_normalising}
        network = recipe.neural.model_copy(update=update)
        self.network = Network(network, len(vocabulary)).to(device)
        self.processes.divide_dropout(self.network)
        occurrences = np.bincount(train.tokens, minlength=len(vocabulary)) + 1.0
        occurrences[EOS] += train.num_sentences
        counts = torch.as_tensor(occurrences, dtype=torch.float32)  # of targets, plus one [V]
        self.network.output.initialise_from_counts(counts)
        if embeddings is not None:
            initialise_embeddings(self.network, embeddings)
        # tokens after the base's keep their initial vectors and biases
        if base is not None:
            given = base.state_dict()
            for name, weights in self.network.state_dict().items():
                size = len(given[name])
                weights[:size] = given[name]
                if is_rank(name):  # an adaptive softmax has them in its last cluster
                    weights[size:] = torch.arange(size, len(weights))
        self.processes.broadcast_weights(self.network)
        self.optimizer = make_optimizer(self.network, settings)
        self.average = WeightAverage(self.network, settings)
        modules = self.network.modules()
        self._dropouts = [(module, module.share) for module in modules if isinstance(module, Dropout)]
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
        self.tuner = ThreadTuner(device.type == "cpu")

    def raise_dropout(self) -> None:
        """Set the dropout of values, rising linearly (Morerio et al. 2017, "curriculum dropout")."""
        start, passes = self.settings.dropout_start, self.settings.dropout_passes
        risen = min(1.0, self.step / (passes * self.streams.steps_per_epoch)) if passes else self.done
        for module, share in self._dropouts:
            module.share = share * (start + (1 - start) * risen)

    def state(self) -> dict[str, Any]:
        """Return the state for resuming; all processes call it, to gather hidden states."""
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
