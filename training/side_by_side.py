"""Networks of a mixture trained side by side, each by one process with a share of the processors.

Processes do not wait for each other's threads, so two networks on two processors finish as many updates in
total as one network after the other would, and more than one network with two threads. The parent shows
the progress of all, and forwards Ctrl-C and SIGTERM. A process whose parent died ends at its next update.
"""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from models.errors import InvalidInputError, ProcessLostError
from training.progress import SILENT, Progress
from training.recipe import Recipe
from training.signals import Interruption, Terminated, catch_interruption, exit_on_sigterm
from training.single_model import ResumableRuns, TrainingInputs, train_single, with_soft_targets
from training.trained import Trained

MIN_MINUTES = 0.05
"""Minimum training time of a network, in minutes."""

_POLL_S = 0.1


def networks_at_once(networks: int, device: str) -> int:
    """Return how many networks are trained at the same time: one for each of torch's threads, up to their number.

    Networks on a GPU, and those of several distributed processes, are trained one after the other.
    """
    import torch

    from training.neural.distributed import Processes

    if device != "cpu" or Processes.current().count > 1:
        return 1
    return max(1, min(networks, torch.get_num_threads()))


def training_waves(networks: Mapping[str, Recipe]) -> list[dict[str, Recipe]]:
    """Group recipes of networks, by title, into waves: a network is in the first wave after those of its teachers."""
    left, waves = dict(networks), list[dict[str, Recipe]]()
    while left:
        waves.append(
            {title: part for title, part in left.items() if left.keys().isdisjoint(part.train.teacher)}
        )
        left = {title: part for title, part in left.items() if title not in waves[-1]}
    return waves


def divide_minutes(mixture: Recipe, parts: Mapping[str, Recipe], device: str) -> dict[str, Recipe]:
    """Divide `train.max_minutes` of a mixture equally among the rounds in which its networks are trained.

    Without this key, parts keep their own limits; with it, a part with a limit of its own keeps that one.

    Args:
        mixture: recipe of the mixture.
        parts: recipes of the parts to train, by title.
        device: compute device.

    Raises:
        InvalidInputError: a network would have less than `MIN_MINUTES`.
    """
    networks = {title: part for title, part in parts.items() if part.family == "neural"}
    minutes = mixture.train.max_minutes
    if len(networks) < 2 or minutes is None or "max_minutes" not in mixture.train.model_fields_set:
        return dict(parts)
    waves = training_waves(networks)
    rounds = sum(-(-len(wave) // networks_at_once(len(wave), device)) for wave in waves)
    share = minutes / rounds
    if share < MIN_MINUTES:
        raise InvalidInputError(
            f"train.max_minutes is {minutes:g}, which is {share:.2g} for each of {rounds} rounds of "
            f"{len(networks)} networks; a network needs at least {MIN_MINUTES:g}",
            parameter="train.max_minutes",
        )
    limited = {
        title: part.model_copy(update={"train": part.train.model_copy(update={"max_minutes": share})})
        for title, part in networks.items()
        if part.train.max_minutes == minutes
    }
    return {**parts, **limited}


class _Message(NamedTuple):
    """Report of a process.

    Attributes:
        title: title of its network.
        process: id of the process.
        percent: new progress.
        note: current figures; empty if they have not changed.
    """

    title: str
    process: int
    percent: float
    note: str


_messages: "SimpleQueue[_Message]"  # in a process that trains


class _Reporter(Progress):
    """Progress of a network's training, the first stage, sent to the parent."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._totals: list[float | None] = []

    @override
    def start(self, description: str, total: float | None) -> None:
        self._totals.append(total)
        self.advance(0)

    @override
    def advance(self, amount: float = 1, note: str = "") -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise Terminated
        if len(self._totals) == 1:
            percent = 100 * amount / (self._totals[0] or 100)
            _messages.put(_Message(self._title, os.getpid(), percent, note))


def train_side_by_side(
    networks: Mapping[str, Recipe], inputs: TrainingInputs, *, at_once: int
) -> dict[str, Trained]:
    """Train networks in processes and evaluate them; equal to `train_single` for each, with fewer threads.

    Args:
        networks: recipes by title.
        inputs: inputs of the run.
        at_once: number of networks that are trained at the same time.

    Raises:
        InvalidInputError: a network could not be trained; the others are saved for resuming.
        ProcessLostError: a process was killed.
        Terminated: SIGTERM was received under `exit_on_sigterm`; the networks are saved.
    """
    import torch

    from models.neural.model import NeuralModel

    context = multiprocessing.get_context("spawn")
    messages: SimpleQueue[_Message] = context.SimpleQueue()
    threads = max(1, torch.get_num_threads() // at_once)
    inputs = with_soft_targets(networks, inputs)
    silent = inputs._replace(progress=SILENT)
    with tempfile.TemporaryDirectory() as folder, catch_interruption() as interrupted:
        pool = ProcessPoolExecutor(at_once, context, _prepare_process, (messages, threads))
        try:
            futures = {
                title: pool.submit(_train, title, recipe, silent, Path(folder) / str(number))
                for number, (title, recipe) in enumerate(networks.items())
            }
            _watch(futures, messages, interrupted, inputs.progress)
            results = [future.result() for future in futures.values()]
        except BrokenProcessPool as error:
            raise ProcessLostError(
                f"a process that trained one of {', '.join(networks)} was killed; --resume continues from the "
                "saved states"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
        trained = {}
        for number, (title, (result, runs)) in enumerate(zip(networks, results, strict=True)):
            model = NeuralModel.load(Path(folder) / str(number), inputs.tokenizer.vocabulary)
            trained[title] = result._replace(model=model)
            if inputs.runs is not None and runs is not None:
                inputs.runs.add(title, runs)
    return trained


def _watch(
    futures: Mapping[str, "Future[tuple[Trained, ResumableRuns | None]]"],
    messages: "SimpleQueue[_Message]",
    interrupted: Interruption,
    progress: Progress,
) -> None:
    """Show the progress of all networks until they have ended, and forward signals to their processes.

    If one fails, the others end after saving their states, and its error is raised.
    """
    processes: set[int] = set()
    notes: dict[str, str] = {}
    sent: set[signal.Signals] = set()
    progress.start(f"training {len(futures)} networks side by side", 100.0)
    try:
        while (pending := wait(futures.values(), timeout=_POLL_S).not_done) or not messages.empty():
            while not messages.empty():
                message = messages.get()
                processes.add(message.process)
                notes[message.title] = message.note or notes.get(message.title, "")
                shown = " | ".join(f"{title}: {note}" for title, note in notes.items() if note)
                progress.advance(message.percent / len(futures), shown)
            failed = any(future.done() and future.exception() for future in futures.values())
            for number, wanted in (
                (signal.SIGINT, interrupted.requested),
                (signal.SIGTERM, interrupted.terminated or failed),
            ):
                if wanted and number not in sent:
                    sent.add(number)
                    _send(number, processes)
            if signal.SIGTERM in sent:
                for future in pending:
                    future.cancel()
    except BaseException:  # a second Ctrl-C
        _send(signal.SIGKILL, processes)
        raise
    progress.finish()
    if interrupted.terminated:
        raise Terminated
    errors = [
        error for future in futures.values() if not future.cancelled() and (error := future.exception())
    ]
    for error in sorted(
        errors, key=lambda error: isinstance(error, SystemExit)
    ):  # the cause before its consequences
        raise error


def _send(number: signal.Signals, processes: set[int]) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


def _prepare_process(messages: "SimpleQueue[_Message]", threads: int) -> None:
    """Prepare a process that trains: its threads, its messages, and signals from the parent alone."""
    global _messages  # noqa: PLW0603 - the only way into a process of a pool
    import torch

    _messages = messages
    torch.set_num_threads(threads)
    os.setpgid(0, 0)  # a terminal sends Ctrl-C to the parent's group


def _train(
    title: str, recipe: Recipe, inputs: TrainingInputs, folder: Path
) -> tuple[Trained, ResumableRuns | None]:
    """Train a network and save it to a new folder; return the rest of the result, and notes on its run."""
    if inputs.runs is not None:
        inputs.runs.notes.clear()  # those of the parent
    with exit_on_sigterm():
        trained = train_single(title, recipe, inputs._replace(progress=_Reporter(title)))
    folder.mkdir()
    trained.model.save(folder)
    return trained._replace(model=None), inputs.runs  # type: ignore[arg-type]  # the parent loads the model
