"""Train a model of one family from a recipe, and resume an interrupted run.

The state of an unfinished run is in `<folder>/.runs/<model>/<recipe>/` of the registry's work
folder, which one process locks at a time; the system releases the lock when the process dies.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoint.folders import report_write_errors
from models.errors import InvalidInputError
from models.tokenizers import Tokenizer
from models.vocabulary import Vocabulary
from training.ngram.estimate import estimate, make_smoothing
from training.progress import Progress
from training.recipe import Recipe
from training.texts import EncodedTexts
from training.trained import Trained, held_out_figures, normalisation_facts

if TYPE_CHECKING:
    from training.neural.embeddings import Embeddings
    from training.neural.trainer import TrainingResult


@contextlib.contextmanager
def locked_folder(folder: Path, *, busy: InvalidInputError) -> Iterator[None]:
    """Create a folder if needed, and hold its lock, which the system releases when the process dies.

    Args:
        folder: may be removed by the holder of the lock.
        busy: raised if another process holds the lock.

    Raises:
        InvalidInputError: `busy`.
        RegistryError: the file system refused.
    """
    with report_write_errors(folder):
        descriptor = _lock(folder, busy)
        while not _is_current(folder, descriptor):  # its last holder removed it after it was opened
            os.close(descriptor)
            descriptor = _lock(folder, busy)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path, busy: InvalidInputError) -> int:
    """Open and lock a folder; return its descriptor."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise busy from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_current(folder: Path, descriptor: int) -> bool:
    """Return whether an open folder still is the folder at its path."""
    return folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat())


_RUNS_FOLDER = ".runs"
_STATE_FILE = "state.pt"


class ResumableRuns:
    """Saved training states of one model and, for a mixture, of its parts.

    Args:
        folder: the registry's work folder.
        name: of the model.
        resume: whether to resume from saved states; otherwise they are removed, with a note.

    Attributes:
        notes: for the user.
        seconds_before: training time before the runs were resumed.
    """

    def __init__(self, folder: Path, name: str, *, resume: bool) -> None:
        self.resume = resume
        self.notes: list[str] = []
        self.seconds_before = 0.0
        self._name = name
        self._folder = folder / _RUNS_FOLDER / name
        self._interrupted = False

    def state_file(self, title: str) -> Path:
        """Return the path of the state of the run with this title."""
        return self._folder / title / _STATE_FILE

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes from training a model of this name.

        Raises:
            InvalidInputError: another process is training it.
            RegistryError: the file system refused.
        """
        busy = InvalidInputError(
            f"another process is training {self._name!r} in {self._folder.parent.parent}; wait for it, or give "
            "another --name",
            parameter="name",
        )
        with locked_folder(self._folder, busy=busy):
            if not self.resume:
                self._remove_states()
            try:
                yield
            finally:
                if not self._states():
                    shutil.rmtree(self._folder, ignore_errors=True)

    def record_end(self, stopped: str, *, notes: Sequence[str], seconds_before: float) -> None:
        """Record the end of a training."""
        self._interrupted |= stopped == "interrupted"
        self.notes += notes
        self.seconds_before += seconds_before

    def close(self) -> None:
        """Remove the saved states after publication, unless a training was interrupted."""
        if self._interrupted:
            self.notes.append("the training was interrupted; the same command with --resume goes on with it")
        else:
            shutil.rmtree(self._folder, ignore_errors=True)

    def resume_hint(self) -> str:
        """Describe how to resume after the command was terminated."""
        if not self._states():
            return "nothing was saved yet, so the same command begins anew"
        return f"the training is saved in {self._folder}; the same command with --resume goes on with it"

    def _states(self) -> list[Path]:
        return sorted(self._folder.glob(f"*/{_STATE_FILE}"))

    def _remove_states(self) -> None:
        if states := self._states():
            titles = ", ".join(path.parent.name for path in states)
            self.notes.append(
                f"an unfinished training ({titles}) was removed; with --resume it would have gone on"
            )
        for path in states:
            shutil.rmtree(path.parent, ignore_errors=True)


def train_single(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    *,
    device: str,
    progress: Progress,
    runs: ResumableRuns | None = None,
) -> Trained:
    """Train a model other than a mixture; see `training.train.train` for the arguments."""
    if recipe.family == "ngram":
        return train_ngram(title, recipe, tokenizer, texts, progress=progress)
    return train_neural(title, recipe, tokenizer, texts, device=device, progress=progress, runs=runs)


def train_ngram(
    title: str, recipe: Recipe, tokenizer: Tokenizer, texts: EncodedTexts, *, progress: Progress
) -> Trained:
    """Estimate an n-gram model; parameters of its smoothing are fitted on the validation text.

    A backward model is an ordinary model of reversed sentences, and is evaluated on them.
    """
    began = time.monotonic()
    settings = recipe.ngram
    texts = in_model_direction(texts, recipe)
    result = estimate(
        texts.train,
        tokenizer.vocabulary,
        order=settings.order,
        smoothing=make_smoothing(
            settings.smoothing, k=settings.k, buckets=settings.buckets, discounts=settings.discounts
        ),
        prune=settings.prune,
        prune_entropy=settings.prune_entropy,
        quantise=settings.quantize_bits is not None,
        held_out=texts.valid,
        progress=progress,
    )
    facts = {
        "ngrams": list(result.num_ngrams),
        "smoothing": settings.smoothing,
        "discounts": [list(d) for d in result.discounts],
        "fallback_orders": list(result.fallback_orders),
        **result.facts,
        **normalisation_facts(result.model),
    }
    seconds = time.monotonic() - began
    figures = held_out_figures(result.model, texts, progress=progress)
    return Trained(title, recipe, result.model, (), facts, figures, seconds)


def train_neural(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    *,
    device: str,
    progress: Progress,
    runs: ResumableRuns | None = None,
) -> Trained:
    """Train a neural model; a backward model is an ordinary model of reversed sentences."""
    from training.neural.diagnostics import diagnose, normaliser_facts
    from training.neural.embeddings import embedding_facts, read_embeddings  # imports torch

    texts = in_model_direction(texts, recipe)
    began = time.monotonic()
    path, vocabulary = recipe.train.embeddings, tokenizer.vocabulary
    embeddings = read_embeddings(Path(path), vocabulary, size=recipe.neural.embedding_size) if path else None
    result = fit_network(
        title,
        recipe,
        vocabulary,
        texts,
        device=device,
        progress=progress,
        runs=runs,
        embeddings=embeddings,
    )
    seconds = time.monotonic() - began + result.seconds_before
    diagnostics = diagnose(result.model.network, texts.valid)
    facts = {
        "stopped": result.stopped,
        "device": device,
        "diagnostics": diagnostics,
        **embedding_facts(path, embeddings),
        **normaliser_facts(result.model, texts.valid),
    }
    figures = held_out_figures(result.model, texts, progress=progress)
    return Trained(title, recipe, result.model, result.history, facts, figures, seconds)


def fit_network(
    title: str,
    recipe: Recipe,
    vocabulary: Vocabulary,
    texts: EncodedTexts,
    *,
    device: str,
    progress: Progress,
    runs: ResumableRuns | None,
    embeddings: "Embeddings | None" = None,
) -> "TrainingResult":
    """Train a recipe's network without evaluating it; the texts are in reading order.

    In distributed training only rank 0 needs embeddings: all processes start from its weights.
    """
    from training.neural.trainer import train_network

    result = train_network(
        texts.train,
        texts.valid,
        vocabulary,
        network=recipe.neural,
        settings=recipe.train,
        seed=recipe.seed,
        device=device,
        progress=progress,
        embeddings=embeddings,
        state_file=None if runs is None else runs.state_file(title),
        resume=runs is not None and runs.resume,
    )
    if runs is not None:
        runs.record_end(result.stopped, notes=result.notes, seconds_before=result.seconds_before)
    return result


def in_model_direction(texts: EncodedTexts, recipe: Recipe) -> EncodedTexts:
    """Return the texts in the recipe's reading direction: reversed sentences for a backward model."""
    if recipe.reading_direction == "forward":
        return texts
    test = None if texts.test is None else texts.test.reversed()
    return EncodedTexts(texts.train.reversed(), texts.valid.reversed(), test)
