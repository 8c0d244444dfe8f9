"""The trainer of neural networks: truncated back-propagation over streams with carried state.

What a run is made of is in `run`; here is the loop. A run keeps the weights of its best validation,
and gives them back however it ends, an interrupt from the keyboard included. Only SIGTERM just saves.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from models.errors import InvalidInputError
from models.neural.config import NetworkConfig
from models.neural.device import resolve_device
from models.neural.model import NeuralModel
from models.vocabulary import BOS, Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.embeddings import Embeddings
from training.neural.allocation import keep_freed_memory
from training.neural.backward import backward
from training.neural.distributed import Processes
from training.neural.failures import divergence_error, memory_advice, worst_row
from training.neural.history import HistoryRecord, with_speed
from training.neural.interruption import Interruption, Terminated, catch_interruption
from training.neural.optimizers import set_learning_rate
from training.neural.precision import autocast
from training.neural.resume import identity_of
from training.neural.run import TrainingRun
from training.neural.saving import Saver
from training.neural.settings import TrainSettings
from training.neural.stream import StreamSegment
from training.neural.tensorboard import TensorBoardWriter
from training.progress import Progress

_RECORDS_PER_VALIDATION = 10
_SMOOTHING = 0.98


class TrainingResult(NamedTuple):
    """What came of a run.

    Attributes:
        model: with the weights of the best validation.
        history: from the first update to the last.
        stopped: why it ended: `max_minutes`, `max_steps`, `epochs`, `patience` or `interrupted`.
        notes: what the user should know: that it was resumed, with what changes.
        seconds_before: that the run took before it was resumed.
    """

    model: NeuralModel
    history: list[HistoryRecord]
    stopped: str
    notes: tuple[str, ...] = ()
    seconds_before: float = 0.0


class _Update(NamedTuple):
    """An update: its learning rate, the gradient's norm before and after clipping, the time, who wants it to end."""

    rate: float
    norm: float
    clipped: float
    seconds: float
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
    embeddings: Embeddings | None = None,
    state_file: Path | None = None,
    resume: bool = False,
) -> TrainingResult:
    """Train a network, together with the other processes if there are such.

    The same seed and number of updates give the same weights, bit by bit, on the same CPU with
    the same number of threads, in one go or resumed. A bound in minutes makes the number of updates
    vary: set `max_steps` or `epochs` where that matters.

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
        embeddings: vectors that tokens start from; None for random ones.
        state_file: where to save all that a resumed run needs; None for nowhere.
        resume: go on from what is saved there, if anything is.

    Raises:
        InvalidInputError: a text is empty, there is no such device, the training diverged or ran
            out of memory, or what is to be resumed is another run.
        FormatError: the saved state is damaged.
        ProcessLostError: one of several processes is gone.
        Terminated: SIGTERM came, which a command takes note of; the run is saved.
    """
    if not valid.num_sentences:
        raise InvalidInputError("the validation text has no sentences", parameter="valid")
    place = resolve_device(device)
    keep_freed_memory()
    Processes.current().barrier()  # the first one may have estimated n-grams for long
    forked = torch.random.fork_rng(devices=[place] if place.type == "cuda" else [])
    with forked, memory_advice(settings), catch_interruption() as interrupted:
        torch.manual_seed(seed)
        run = TrainingRun(
            train,
            valid,
            vocabulary,
            network=network,
            settings=settings,
            seed=seed,
            device=place,
            clock=clock,
            embeddings=embeddings,
        )
        identity = identity_of(train, valid, vocabulary, network=network, settings=settings, seed=seed)
        saver = Saver(run, state_file, identity)
        before = saver.resume() if resume else 0.0
        progress.start(f"training the {network.cell} network", 100.0)
        if run.done:
            progress.advance(100 * run.done)
        with TensorBoardWriter(
            settings.tensorboard if run.processes.is_leader else "", step=run.step
        ) as board:
            _train_until_stop(run, saver, interrupted, board, progress)
        if board.failure:
            run.notes.append(board.failure)
        progress.finish()
        if run.stopped == "terminated" or interrupted.terminated:
            raise Terminated(saver.failure)
    run.best.apply(run.network)
    model = NeuralModel(run.network, vocabulary, device=str(place))
    return TrainingResult(model, run.history, run.stopped, tuple(run.notes), before)


def _train_until_stop(
    run: TrainingRun, saver: Saver, interrupted: Interruption, board: TensorBoardWriter, progress: Progress
) -> None:
    """Update until a bound, patience or the user ends it; the run remembers which."""
    if run.stopped:
        return
    validations = run.settings.validations
    whole = True  # whether all parts stand at the same update
    try:
        for stretch in run.streams.segments(run.settings.epochs, skip=run.step):
            if run.done >= 1:
                break
            whole = False
            update = _update(run, stretch, interrupted)
            before, run.done = run.done, run.schedule.done(run.step, seconds=update.seconds)
            run.average.add(run.done)
            perplexity = _validate(run) if _crosses(before, run.done, validations) else None
            if _crosses(before, run.done, _RECORDS_PER_VALIDATION * validations):
                _record(run, stretch.epoch, perplexity, update)
                board.add(run.history[-1])
            whole = True
            progress.advance(100 * (run.done - before), _progress_note(run))
            if update.stopped or run.best.exhausted:
                run.stopped = update.stopped or "patience"
                break
            saver.save_if_due(update.seconds)
        run.stopped = run.stopped or run.schedule.reached(run.step)
    except KeyboardInterrupt:
        if run.processes.count > 1:  # the others are amid an exchange
            raise
        run.stopped = "interrupted"
    if whole:
        saver.save()


def _update(run: TrainingRun, stretch: StreamSegment, interrupted: Interruption) -> _Update:
    """One step of the optimiser."""
    settings, network = run.settings, run.network
    _detach_hidden(run, first=stretch.first)
    inputs, targets = (
        torch.as_tensor(ids[:, run.rows], device=run.device) for ids in (stretch.inputs, stretch.targets)
    )
    predicted = stretch.targets != BOS
    weight = float(predicted[:, run.rows].sum()) / max(int(predicted.sum()), 1)
    run.penalties.scale = 1 / (run.processes.count * weight) if weight else 0.0
    run.criterion.set_progress(run.done)
    run.dropout.set_progress(run.done)
    run.optimizer.zero_grad()
    with autocast(run.precision, run.device):
        outputs, run.hidden = network(inputs, run.hidden)
    loss = backward(network, outputs, targets, run.criterion, precision=run.precision)
    told = run.processes.exchange(
        list(network.parameters()),
        weight=weight,
        loss=loss,
        seconds=run.schedule.seconds,
        interrupted=interrupted.requested,
        terminated=interrupted.terminated,
    )
    norm = float(nn.utils.clip_grad_norm_(network.parameters(), settings.clip_norm))
    if not (math.isfinite(told.loss) and math.isfinite(norm)):
        text = worst_row(network, outputs, targets, run.vocabulary)
        raise divergence_error(run.step + 1, loss=told.loss, norm=norm, text=text, settings=settings)
    rate = run.schedule.learning_rate(run.done) * len(inputs) / run.streams.bptt_length
    set_learning_rate(run.optimizer, rate)
    run.optimizer.step()
    run.step += 1
    run.tokens += stretch.inputs.size
    smoothed = told.loss if math.isnan(run.loss) else run.loss
    run.loss = _SMOOTHING * smoothed + (1 - _SMOOTHING) * told.loss
    stopped = "terminated" if told.terminated else "interrupted" if told.interrupted else ""
    return _Update(rate, norm, min(norm, settings.clip_norm), told.seconds, stopped)


def _detach_hidden(run: TrainingRun, *, first: bool) -> None:
    """Cut the carried state off from the past; at random, and at an epoch's start, empty it."""
    going_on = 0.0 if first else 1 - run.settings.reset
    kept = torch.bernoulli(torch.full((run.streams.batch_size,), going_on)).bool()[run.rows]
    run.hidden = run.network.detach_and_reset(run.hidden, kept.to(run.device))


def _validate(run: TrainingRun) -> float:
    """Perplexity per token of the validation text, of the averaged weights if there are any."""
    with run.average.applied():
        perplexity = math.nan
        if run.processes.is_leader:
            model = NeuralModel(run.network, run.vocabulary, device=str(run.device))
            perplexity = run.validation.perplexity(model)
            run.network.train()
        perplexity = run.processes.broadcast_value(perplexity)
        counts = run.criterion.is_final and not run.average.is_pending
        run.best.update(perplexity, run.network, counts=counts)
    run.average.record_validation(perplexity)
    return perplexity


def _crosses(before: float, after: float, marks: int) -> bool:
    """Whether one of so many even marks lies in (before, after]."""
    return int(before * marks) < int(after * marks)


def _record(run: TrainingRun, epoch: int, perplexity: float | None, update: _Update) -> None:
    record = HistoryRecord(
        step=run.step,
        epoch=epoch,
        tokens=run.tokens,
        seconds=run.schedule.seconds,
        train_loss=run.loss,
        valid_perplexity=None if perplexity == math.inf else perplexity,
        learning_rate=update.rate,
        grad_norm=update.norm,
        clipped_norm=update.clipped,
    )
    run.history.append(with_speed(run.history, record))


def _progress_note(run: TrainingRun) -> str:
    best = "" if math.isinf(run.best.perplexity) else f", valid {run.best.perplexity:.1f}"
    rate = run.tokens / max(run.schedule.seconds, 1e-9)
    return f"perplexity {math.exp(min(run.loss, 50)):.1f}{best}, {rate:,.0f} tokens/s"
