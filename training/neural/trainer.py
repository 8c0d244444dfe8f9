"""Training loop of neural networks: truncated back-propagation over streams with carried state.

A run keeps the weights of its best validation and returns them at the end, also after
Ctrl-C; SIGTERM only saves the state, also saved every few minutes, for resuming.
"""

import ctypes
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.errors import InputError
from models.language_model import BOS, Vocabulary
from models.neural.model import NeuralModel
from models.neural.network import Network, resolve_device
from training.corpus import EncodedCorpus
from training.neural.diagnostics import TensorBoardWriter, memory_advice, worst_row
from training.neural.distributed import ExchangeStatus, Processes
from training.neural.embeddings import Embeddings
from training.neural.losses.softmax import Loss
from training.neural.resume import Saver
from training.neural.run import TrainingRun, autocast
from training.neural.streams import SoftTargets, StreamSegment
from training.progress import HistoryRecord, Interruption, Progress, Terminated, catch_interruption
from training.recipe import Recipe

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_MAX_THRESHOLD = 2**31 - 1
_RECORDS_PER_VALIDATION = 10
_SMOOTHING = 0.98


def backward(
    network: Network, outputs: Tensor, targets: Tensor, loss: Loss, *, precision: torch.dtype
) -> float:
    """Add the gradient of the mean loss to the parameters' gradients.

    Args:
        network: network in training mode.
        outputs: outputs of the body, with their graph [T, B, W].
        targets: target ids [T, B]; `<s>` is not predicted.
        loss: training loss.
        precision: type of the matrix products.

    Returns:
        The mean loss per predicted token; 0 without any.
    """
    # a mask makes the host wait at each use
    predicted = (targets != BOS).nonzero(as_tuple=True)
    ids = targets[predicted]
    if not len(ids):
        return 0.0
    with autocast(precision, outputs.device):
        features = network.features(outputs)[predicted]  # [N, E]
    learned = loss(features.detach(), ids, precision=precision)
    features.backward(learned.gradient)  # type: ignore[no-untyped-call]  # torch ships it untyped
    return learned.loss


class TrainingResult(NamedTuple):
    """Result of a run.

    Attributes:
        model: model with the weights of the best validation.
        history: records from the first update to the last.
        stopped: reason for the end: `max_minutes`, `max_steps`, `epochs`, `patience` or `interrupted`.
        notes: messages for the user, such as changes on resume.
        seconds_before: seconds of the run before resuming.
        throughput: facts of `ThreadTuner`, on a CPU.
        loss: name of the loss.
    """

    model: NeuralModel
    history: list[HistoryRecord]
    stopped: str
    notes: tuple[str, ...] = ()
    seconds_before: float = 0.0
    throughput: Mapping[str, float] = MappingProxyType({})
    loss: str = ""


def train_network(
    train: EncodedCorpus,
    valid: EncodedCorpus,
    vocabulary: Vocabulary,
    recipe: Recipe,
    *,
    device: str,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
    embeddings: Embeddings | None = None,
    base: Network | None = None,
    soft_targets: SoftTargets | None = None,
    state_file: Path | None = None,
    resume: bool = False,
) -> TrainingResult:
    """Train a network, with the run's other processes.

    Equal seeds and updates give bit-identical weights on the same CPU
    with the same number of threads, also after resuming. A limit in minutes varies
    the number of updates: set `max_steps` or `epochs` for reproducible runs.

    Args:
        train: training text.
        valid: validation text, which selects the best weights.
        vocabulary: vocabulary of both texts.
        recipe: network shape, training settings, and seed of weights, dropout and text order.
        device: `cpu`, `cuda`, `cuda:1`, … or `auto`.
        progress: display of the percentage.
        clock: monotonic clock in seconds.
        embeddings: initial vectors of tokens; None for random ones.
        base: network of the same shape with the initial weights; `vocabulary` begins with its
            own. The result's validation perplexity is at most the base's. None for random weights.
        soft_targets: distributions of the settings' teachers; None without any.
        state_file: file of the saved state; None saves none.
        resume: continue from `state_file`, if it exists.

    Raises:
        InputError: an empty text, no such device, the training diverged or ran
            out of memory, or the saved state belongs to another run.
        FormatError: the saved state is damaged.
        ProcessLostError: another process was lost.
        Terminated: SIGTERM was received under `exit_on_sigterm`; the run is saved.
    """
    if not valid.num_sentences:
        raise InputError("the validation text has no sentences", param="valid")
    torch_device = resolve_device(device)
    if sys.platform.startswith("linux") and (tune := getattr(ctypes.CDLL(None), "mallopt", None)):
        # else glibc returns each large freed block and gets it back page by page, zeroed:
        # an eighth of an update's time on CPUs; other allocators are unchanged
        tune(_MMAP_THRESHOLD, _MAX_THRESHOLD >> 1)
        tune(_TRIM_THRESHOLD, _MAX_THRESHOLD)
    Processes.current().barrier()  # rank 0 may have estimated n-grams for long
    forked = torch.random.fork_rng(devices=[torch_device] if torch_device.type == "cuda" else [])
    with forked, memory_advice(recipe.train), catch_interruption() as interrupted:
        torch.manual_seed(recipe.seed)
        run = TrainingRun(
            train, valid, vocabulary, recipe, torch_device, clock, embeddings, base, soft_targets
        )
        saver = Saver(run, state_file)
        before = saver.resume() if resume else 0.0
        with progress.stage(f"training the {recipe.neural.cell} network", 100.0):
            if run.done:
                progress.advance(100 * run.done)
            if base is not None and not run.step:
                _validate(run, 0.0)
            folder = recipe.train.tensorboard if run.processes.is_leader else ""
            with closing(TensorBoardWriter(folder, step=run.step)) as board, run.tuner.running():
                _train_until_stop(run, saver, interrupted, board, progress)
        validated = [record.valid_perplexity for record in run.history if record.valid_perplexity]
        if base is not None and min(validated, default=math.inf) > run.best.perplexity:
            run.notes.append("no validation was better than that of the base, so its weights are unchanged")
        run.notes += filter(None, [board.failure, run.tuner.note()])
        if run.stopped == "terminated" or interrupted.terminated:
            raise Terminated(saver.failure)
    if run.best.weights is not None:
        run.network.load_state_dict(run.best.weights)
    model = NeuralModel(run.network, vocabulary, device=str(torch_device))
    facts = run.tuner.facts(), run.criterion.name
    return TrainingResult(model, run.history, run.stopped, tuple(run.notes), before, *facts)


def _train_until_stop(
    run: TrainingRun, saver: Saver, interrupted: Interruption, board: TensorBoardWriter, progress: Progress
) -> None:
    """Update until a limit, patience or the user ends the run; store the reason."""
    if run.stopped:
        return
    validations = run.settings.validations
    consistent = True  # all parts of the state are of one update
    try:
        for segment in run.streams.segments(run.settings.epochs, skip=run.step):
            if run.done >= 1:
                break
            consistent = False
            with run.tuner.measured(segment.inputs.size):
                rate, norm, status = _update(run, segment, interrupted)
            before, run.done = run.done, run.schedule.done(run.step, seconds=status.seconds)
            run.average.add(run.done)
            perplexity = _validate(run, status.seconds) if _crosses(before, run.done, validations) else None
            if _crosses(before, run.done, _RECORDS_PER_VALIDATION * validations):
                _record(run, segment.epoch, perplexity, rate=rate, norm=norm)
                board.add(run.history[-1])
            consistent = True
            best = "" if math.isinf(run.best.perplexity) else f", valid {run.best.perplexity:.1f}"
            speed = f"{run.tokens / max(run.schedule.seconds, 1e-9):,.0f} tokens/s{run.tuner.shortage}"
            note = f"perplexity {math.exp(min(run.loss, 50)):.1f}{best}, {speed}"
            progress.advance(100 * (run.done - before), note)
            if status.terminated or status.interrupted:
                run.stopped = "terminated" if status.terminated else "interrupted"
                break
            if run.best.failures >= run.settings.patience:
                run.stopped = "patience"
                break
            saver.save_if_due(status.seconds)
        run.stopped = run.stopped or run.schedule.reached(run.step)
    except KeyboardInterrupt:
        if run.processes.count > 1:  # others are in the middle of an exchange
            raise
        run.stopped = "interrupted"
    if consistent:
        saver.save()


def _update(
    run: TrainingRun, segment: StreamSegment, interrupted: Interruption
) -> tuple[float, float, ExchangeStatus]:
    """Run an optimiser step on a segment; return its learning rate, gradient norm and status."""
    settings, network = run.settings, run.network
    # carried state is reset at an epoch's start, and random rows before each update
    keep_probability = 0.0 if segment.first else 1 - settings.reset
    keep = torch.bernoulli(torch.full((run.streams.batch_size,), keep_probability)).bool()[run.rows]
    run.hidden = network.detach_and_reset(run.hidden, keep.to(run.device))
    inputs, targets = (
        torch.as_tensor(ids[:, run.rows], device=run.device) for ids in (segment.inputs, segment.targets)
    )
    predicted = segment.targets != BOS
    weight = float(predicted[:, run.rows].sum()) / max(int(predicted.sum()), 1)  # of these rows
    run.penalties.scale = 1 / (run.processes.count * weight) if weight else 0.0
    run.criterion.set_progress(run.done)
    if run.soft_targets is not None:
        share = settings.teacher_weight
        run.criterion.changes = run.soft_targets.changes(segment, weight=share, device=run.device)
    run.raise_dropout()
    run.optimizer.zero_grad()
    with autocast(run.precision, run.device):
        outputs, run.hidden = network(inputs, run.hidden)
    loss = backward(network, outputs, targets, run.criterion, precision=run.precision)
    own = ExchangeStatus(loss, run.schedule.seconds, interrupted.requested, interrupted.terminated)
    totals = run.processes.exchange(list(network.parameters()), own, weight=weight)
    norm = float(nn.utils.clip_grad_norm_(network.parameters(), settings.clip_norm))
    if not (math.isfinite(totals.loss) and math.isfinite(norm)):
        text = worst_row(network, outputs, targets, run.vocabulary)
        raise InputError(
            f"the training diverged at step {run.step + 1}: the loss is {totals.loss:g} and the gradient norm "
            f"{norm:g}; train.learning_rate is {settings.learning_rate:g}: try a third of it, or "
            f"train.precision=float32; the row of text with the highest loss is {text!r}",
            param="train.learning_rate",
        )
    rate = run.schedule.learning_rate(run.done) * len(inputs) / run.streams.bptt_length  # Merity et al.
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    run.optimizer.step()
    run.step += 1
    run.tokens += segment.inputs.size
    smoothed = totals.loss if math.isnan(run.loss) else run.loss
    run.loss = _SMOOTHING * smoothed + (1 - _SMOOTHING) * totals.loss
    return rate, norm, totals


def _validate(run: TrainingRun, seconds: float) -> float:
    """Compute the validation perplexity per token, of averaged weights if any, after the run's `seconds`."""
    with run.average.applied():
        perplexity = math.nan
        if run.processes.is_leader:
            model = NeuralModel(run.network, run.vocabulary, device=str(run.device))
            perplexity = run.validation.perplexity(model)
            run.network.train()
        perplexity = run.processes.broadcast_value(perplexity)
        counts = run.criterion.is_final and not run.average.is_pending
        run.best.update(perplexity, run.network, counts=counts)
        has_spare_time = run.schedule.has_spare_time(run.step, seconds)
        run.criterion.record_validation(perplexity, has_spare_time=has_spare_time)
    run.average.record_validation(perplexity)
    return perplexity


def _crosses(before: float, after: float, marks: int) -> bool:
    """Return True if one of `marks` evenly spaced marks lies in (before, after]."""
    return int(before * marks) < int(after * marks)


def _record(run: TrainingRun, epoch: int, perplexity: float | None, *, rate: float, norm: float) -> None:
    seconds, last = run.schedule.seconds, run.history[-1] if run.history else None
    elapsed, tokens = (seconds - last.seconds, run.tokens - last.tokens) if last else (seconds, run.tokens)
    speed = tokens / elapsed if elapsed > 0 else None
    found, clipped = None if perplexity == math.inf else perplexity, min(norm, run.settings.clip_norm)
    run.history.append(
        HistoryRecord(run.step, epoch, run.tokens, seconds, run.loss, found, rate, norm, clipped, speed)
    )
