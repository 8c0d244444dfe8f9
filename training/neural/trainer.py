"""Training loop of neural networks: truncated back-propagation over streams with carried state.

A run keeps the weights of its best validation and returns them however it ends, including by Ctrl-C;
SIGTERM only saves the state. The state is saved every few minutes, and a run is resumed from it.
"""

import ctypes
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.errors import InvalidInputError, RegistryError
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network, resolve_device
from models.vocabulary import BOS, Vocabulary
from training.corpus import EncodedCorpus
from training.neural.diagnostics import TensorBoardWriter, divergence_error, memory_advice, worst_row
from training.neural.distributed import Interruption, Processes, Terminated, catch_interruption
from training.neural.embeddings import Embeddings
from training.neural.losses.loss import Loss
from training.neural.optimization import set_learning_rate
from training.neural.resume import StateFile, changed_bounds, identity_of, library_version
from training.neural.run import TrainingRun, autocast
from training.neural.settings import TrainSettings
from training.neural.streams import StreamSegment
from training.progress import HistoryRecord, Progress, with_speed

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_MAX_THRESHOLD = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep large blocks that it frees, to use them again.

    glibc returns each to the system and takes it back page by page, zeroed: an eighth of an update's
    time on a CPU. Other allocators are left alone.

    Returns:
        Whether it is so now.
    """
    if not sys.platform.startswith("linux"):
        return False
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is None:
        return False
    return bool(tune(_MMAP_THRESHOLD, _MAX_THRESHOLD >> 1)) and bool(tune(_TRIM_THRESHOLD, _MAX_THRESHOLD))


def backward(
    network: Network, outputs: Tensor, targets: Tensor, loss: Loss, *, precision: torch.dtype
) -> float:
    """Add the gradient of the mean loss to the parameters' gradients.

    Args:
        network: in training mode.
        outputs: the body's [T, B, W], with the graph that made them.
        targets: the ids that follow, [T, B]; `<s>` is not predicted.
        loss: what is minimised.
        precision: of matrix products.

    Returns:
        The loss: mean per predicted token, 0 where there is none.
    """
    predicted = targets != BOS
    ids = targets[predicted]
    if not len(ids):
        return 0.0
    with autocast(precision, outputs.device):
        features = network.features(outputs)[predicted]  # [N, E]
    learned = loss(network.output, features.detach(), ids, precision=precision)
    features.backward(learned.gradient)  # type: ignore[no-untyped-call]  # torch ships it untyped
    return learned.loss


class Saver:
    """Keeps a run in a file.

    Args:
        run: what is saved.
        path: of the file; None for nowhere.
        identity: what makes the run this run, as `identity_of` has it.

    Attributes:
        failure: why it could not be saved when that was last tried; empty where it was.
    """

    def __init__(self, run: TrainingRun, path: Path | None, identity: Mapping[str, Any]) -> None:
        self._run = run
        self._file = None if path is None else StateFile(path)
        self._identity = dict(identity)
        self._saved_at = 0.0  # seconds of the run
        self.failure = ""

    def resume(self) -> float:
        """Let the run go on from what is in the file, if anything is; of several processes, in the first one's.

        Returns:
            The seconds that it took until then.

        Raises:
            InvalidInputError: it is of another run; the message says what differs. Or another process has a
                state and the first one has none.
            FormatError: the file is damaged.
        """
        if self._file is None:
            return 0.0
        run = self._run
        processes = run.processes
        content = processes.broadcast_bytes(self._file.content() if processes.is_leader else None)
        if content is None:
            self._check_no_stale_state(self._file.path)
            return 0.0
        state = self._file.parse(content)
        try:
            version = f"{state['version']:.80}"
            changed = changed_bounds(state, self._identity, place=self._file.path.parent)
            run.check(state)
            run.resume_from(state)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise self._file.format_error(error) from None
        self._saved_at = state["seconds"]
        run.notes.append(f"resumed after {run.step:,} updates and {self._saved_at / 60:.1f} minutes")
        if changed:
            run.stopped = ""
            run.done = run.schedule.done(run.step, seconds=self._saved_at)
            run.notes.append(f"the schedule was shaped anew: {'; '.join(changed)}")
        if version != library_version():
            run.notes.append(f"begun with version {version}, this is {library_version()}")
        return self._saved_at

    def save_if_due(self, seconds: float) -> None:
        """Save if it was last done `save_minutes` ago.

        Args:
            seconds: since the run began, the same in all processes, so that all save or none.
        """
        if seconds - self._saved_at >= 60 * self._run.settings.save_minutes:
            self._saved_at = seconds
            self.save()

    def save(self) -> None:
        """Save now; the first of several processes does it for all."""
        if self._file is None:
            return
        state = {"identity": self._identity, **self._run.state()}
        if not self._run.processes.is_leader:
            return
        try:
            self._file.write(state)
        except RegistryError as error:  # no reason to lose the run as well
            self.failure = str(error)
            if self.failure not in self._run.notes:  # it may be so at every update
                self._run.notes.append(self.failure)
        else:
            self.failure = ""

    def _check_no_stale_state(self, path: Path) -> None:
        """Do not begin anew where the machines were started in another order than before."""
        places = self._run.processes.gather_texts(str(path.absolute()) if path.exists() else "")
        for rank, place in enumerate(places):
            if place:
                raise InvalidInputError(
                    f"process 0 has no saved training to go on with, but process {rank} has one, {place}: start its "
                    "machine as the first one (--node-rank 0), or go without --resume",
                    parameter="resume",
                )


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
