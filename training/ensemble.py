"""Training of an ensemble: a mixture's networks side by side, each in a process with a share of processors.

Two networks with a thread each read more tokens per second than one with two
threads, which wait for each other. The parent shows the progress of all, and
forwards Ctrl-C and SIGTERM. A process whose parent died ends at its next update.
"""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from models.errors import DomainError, InputError, ProcessLostError
from training.progress import SILENT, Progress, Terminated, catch_interruption, exit_on_sigterm
from training.recipe import Recipe
from training.single_model import ResumableRuns, Trained, TrainingInputs, train_single, with_soft_targets

MIN_MINUTES = 0.05
"""Minimum training time of a network, in minutes."""

_POLL_S = 0.1


def networks_at_once(networks: int, device: str) -> int:
    """Count the networks trained at once: as many as torch has threads.

    On a GPU or in several distributed processes, they are trained one after the other.
    """
    import torch

    from training.neural.distributed import Processes

    if device != "cpu" or Processes.current().count > 1:
        return 1
    return max(1, min(networks, torch.get_num_threads()))


def training_waves(networks: Mapping[str, Recipe]) -> list[dict[str, Recipe]]:
    """Group recipes of networks, by title, into waves.

    A network is in the first wave after those of its teachers.
    """
    left, waves = dict(networks), list[dict[str, Recipe]]()
    while left:
        waves.append(
            {title: part for title, part in left.items() if left.keys().isdisjoint(part.train.teacher)}
        )
        left = {title: part for title, part in left.items() if title not in waves[-1]}
    return waves


def divide_minutes(mixture: Recipe, parts: Mapping[str, Recipe], device: str) -> dict[str, Recipe]:
    """Divide a mixture's `train.max_minutes` equally among its networks' training rounds.

    Time unused by a round, as its networks have lower limits, goes
    to the other rounds. Without this key, all parts keep their own limits.

    Raises:
        InputError: a network would have less than `MIN_MINUTES`.
    """
    networks = {title: part for title, part in parts.items() if part.family == "neural"}
    minutes = mixture.train.max_minutes
    if len(networks) < 2 or minutes is None or "max_minutes" not in mixture.train.model_fields_set:
        return dict(parts)
    waves = [
        (max(part.train.max_minutes or minutes for part in wave.values()), -(-len(wave) // at_once), wave)
        for wave in training_waves(networks)
        for at_once in [networks_at_once(len(wave), device)]
    ]
    rounds = sum(number for _, number, _ in waves)
    share = minutes / rounds
    if share < MIN_MINUTES:
        raise InputError.of(
            "train.max_minutes",
            f"is {minutes:g}, which is {share:.2g} for each of {rounds} rounds of "
            f"{len(networks)} networks; a network needs at least {MIN_MINUTES:g}",
        )
    limited = dict(parts)
    for limit, number, wave in sorted(waves, key=itemgetter(0)):
        share = min(limit, minutes / rounds)
        minutes, rounds = minutes - share * number, rounds - number
        for title, part in wave.items():
            own = {"max_minutes": min(share, part.train.max_minutes or share)}
            limited[title] = part.model_copy(update={"train": part.train.model_copy(update=own)})
    return limited


class _Result(NamedTuple):
    """Trained network, whose model is in a folder, and notes on its run."""

    trained: Trained
    runs: ResumableRuns | None


class _Reporter(Progress):
    """Progress of a network's first stage, training, sent to the parent: percent to add, and a note."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
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
            self._connection.send((100 * amount / (self._totals[0] or 100), note))


def train_side_by_side(
    networks: Mapping[str, Recipe], inputs: TrainingInputs, *, at_once: int
) -> dict[str, Trained]:
    """Train and evaluate networks in processes; like `train_single` for each, with fewer threads.

    If one fails, the others end after saving their states.

    Raises:
        InputError: a network could not be trained.
        ProcessLostError: a process ended without a result.
        Terminated: SIGTERM was received under `exit_on_sigterm`; the networks are saved.
    """
    import torch

    from models.neural.model import NeuralModel

    threads = max(1, torch.get_num_threads() // at_once)
    inputs = with_soft_targets(networks, inputs)
    with tempfile.TemporaryDirectory() as folder:
        workers = {
            title: _Worker(title, recipe, inputs, Path(folder) / str(number), threads)
            for number, (title, recipe) in enumerate(networks.items())
        }
        try:
            is_terminated = _run(workers, at_once, inputs.progress)
        finally:
            for worker in workers.values():
                worker.send(signal.SIGKILL)
        trained, outcomes = {}, {title: worker.outcome for title, worker in workers.items()}
        if is_terminated:
            unsaved = {outcome.unsaved for outcome in outcomes.values() if isinstance(outcome, Terminated)}
            raise Terminated("; ".join(filter(None, unsaved)))
        for title, outcome in outcomes.items():
            if isinstance(outcome, DomainError):
                raise outcome
            if isinstance(outcome, _Result):
                model = NeuralModel.load(workers[title].folder, inputs.tokenizer.vocabulary)
                trained[title] = outcome.trained._replace(model=model)
                if inputs.runs is not None and outcome.runs is not None:
                    inputs.runs.add(title, outcome.runs)
    return trained


class _Worker:
    """Process that trains a network.

    Attributes:
        folder: folder of the trained model.
        note: last figures.
        outcome: result, or why it ended without one; None before the end.
    """

    def __init__(
        self, title: str, recipe: Recipe, inputs: TrainingInputs, folder: Path, threads: int
    ) -> None:
        self.title = title
        self.folder = folder
        self.note = ""
        self.outcome: _Result | BaseException | None = None
        context = multiprocessing.get_context("spawn")
        self.connection, self._own = context.Pipe(duplex=False)
        arguments = (self._own, title, recipe, inputs._replace(progress=SILENT), folder, threads)
        self._process: SpawnProcess = context.Process(target=_train, args=arguments)

    def start(self) -> None:
        """Start the process."""
        self._process.start()
        self._own.close()  # so the end of the process ends the connection

    def receive(self) -> float:
        """Receive a message; return the new progress, in percent."""
        try:
            message = self.connection.recv()
        except EOFError:
            self._process.join()
            message = ProcessLostError(
                f"the process that trained {self.title} ended without a result, with status "
                f"{self._process.exitcode}; --resume continues it"
            )
        if isinstance(message, _Result | BaseException):
            self.outcome = message
            self._process.join()
            return 0.0
        percent, note = message
        self.note = note or self.note
        return float(percent)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is running."""
        if self._process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self._process.pid or 0, number)


def _run(workers: Mapping[str, _Worker], at_once: int, progress: Progress) -> bool:
    """Run the processes, show their progress, forward signals, and end all if one fails.

    Returns:
        True if SIGTERM was received.
    """
    waiting = list(workers.values())
    running: dict[Any, _Worker] = {}  # by connection
    sent: set[signal.Signals] = set()
    title = f"training {len(workers)} networks side by side"
    with progress.stage(title, 100.0), catch_interruption() as interrupted:
        while running or waiting:
            while waiting and len(running) < at_once:
                worker = waiting.pop(0)
                worker.start()
                running[worker.connection] = worker
            for connection in wait(list(running), timeout=_POLL_S):
                percent = running[connection].receive()
                notes = [f"{title}: {worker.note}" for title, worker in workers.items() if worker.note]
                progress.advance(percent / len(workers), " | ".join(notes))
                if running[connection].outcome is not None:
                    del running[connection]
            failed = any(isinstance(worker.outcome, BaseException) for worker in workers.values())
            for number, wanted in (
                (signal.SIGINT, interrupted.requested),
                (signal.SIGTERM, interrupted.terminated or failed),
            ):
                if wanted and number not in sent:
                    sent.add(number)
                    for worker in running.values():
                        worker.send(number)
            if signal.SIGTERM in sent:
                waiting.clear()
    return interrupted.terminated


def _train(
    connection: Connection, title: str, recipe: Recipe, inputs: TrainingInputs, folder: Path, threads: int
) -> None:
    """Train a network, save it to a new folder, and send the other results or the error."""
    import torch

    # a terminal sends Ctrl-C to the parent's group; the parent forwards it
    os.setpgid(0, 0)
    torch.set_num_threads(threads)
    if inputs.runs is not None:
        inputs.runs.notes.clear()  # those of the parent
    outcome: _Result | BaseException
    try:
        with exit_on_sigterm():
            trained = train_single(title, recipe, inputs._replace(progress=_Reporter(connection)))
        folder.mkdir()
        trained.model.save(folder)
        without_model: Trained = trained._replace(model=None)  # type: ignore[arg-type]  # the parent loads it
        outcome = _Result(without_model, inputs.runs)
    except (DomainError, Terminated) as error:
        outcome = error
    connection.send(outcome)
