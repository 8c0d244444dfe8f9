"""`gramophone train`: by a recipe, published as a new version."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.load import Checkpoint, load_checkpoint
from models.checkpoint.registry import Address, Registry, open_registry
from models.checkpoint.versions import check_name
from models.neural.device import resolve_device
from training.commands.result import training_result
from training.console import console_progress
from training.data import encode_texts, read_fitting_text, read_texts
from training.mixing import mixture_tokenizer
from training.neural.agreement import check_same_command, check_same_text
from training.neural.distributed import Processes, join_processes
from training.neural.interruption import Terminated, exit_on_sigterm
from training.overlap import overlaps
from training.pipeline import network_recipes, train, train_as_follower
from training.progress import SILENT, Progress
from training.publishing import RunContext, command_line, publish
from training.recipe import Recipe, load_recipe
from training.runs import ResumableRuns
from training.scale.options import ScaleOptions
from training.tokenizing import learn_tokenizer

QUICKSTART_NAME = "mixture"


def run_train(
    recipe_name: str,
    *,
    name: str,
    registry: Address,
    corpus: Sequence[Path] = (),
    valid: Sequence[Path] = (),
    test: Sequence[Path] = (),
    assignments: Sequence[str] = (),
    device: str = "cpu",
    resume: bool = False,
    scale: ScaleOptions | None = None,
) -> dict[str, Any]:
    """Train by a recipe and publish; of several processes started by torchrun, the first one publishes.

    Args:
        recipe_name: the recipe's name or path.
        name: to publish under.
        registry: where to.
        corpus: files to learn from.
        valid: files to decide by.
        test: files to report on.
        assignments: keys of the recipe that are set anew.
        device: to compute on.
        resume: go on with an interrupted training of this name, if there is one.
        scale: how n-grams are estimated past memory; None: in memory.

    Returns:
        The new version's address, directory and held-out figures; nothing in the other processes.

    Raises:
        LanguageModelError: bad input, or the registry refused; nothing is half published.
    """
    check_name(name)
    recipe = load_recipe(recipe_name, assignments)
    title = Path(recipe_name).stem
    if scale is not None:
        target = (open_registry(registry, create=True), name)
        return _train_out_of_core(recipe, (corpus, valid, test), target, scale, recipe_name=recipe_name)
    networks = network_recipes(
        title, recipe
    )  # parts that cannot be trained are refused before the text is read
    with exit_on_sigterm(), join_processes(resolve_device(device)) as place:
        leads = Processes.current().is_leader
        store = open_registry(registry, create=True)
        runs = ResumableRuns(store.work_folder, name, resume=resume)
        with (
            _resume_hint(runs.resume_hint),
            runs.locked() if networks and leads else contextlib.nullcontext(),
        ):
            runs.notes += check_same_command(recipe, networks, device=str(place), resume=resume)
            progress = console_progress() if leads else SILENT
            prepared = _prepare(recipe, store, (corpus, valid, test), device=str(place), progress=progress)
            check_same_text(prepared.run.texts, prepared.run.tokenizer, prepared.run.encoded)
            if leads:
                return _train_and_publish(
                    title, recipe, prepared, (store, name), device=str(place), runs=runs, progress=progress
                )
            run = prepared.run
            train_as_follower(title, recipe, run.tokenizer, run.encoded, device=str(place), runs=runs)
            return {}


def _train_out_of_core(
    recipe: Recipe,
    files: Sequence[Sequence[Path]],
    target: tuple[Registry, str],
    options: ScaleOptions,
    *,
    recipe_name: str,
) -> dict[str, Any]:
    """Estimate n-grams by an engine; of several processes the first one does."""
    from training.commands.past_memory import train_out_of_core_command

    how = "the same command goes on from the stages that are finished"
    with exit_on_sigterm(), join_processes(resolve_device("cpu")), _resume_hint(lambda: how):
        if not Processes.current().is_leader:
            return {}
        return train_out_of_core_command(
            recipe, files, target, options, recipe_name=recipe_name, progress=console_progress()
        )


@contextlib.contextmanager
def _resume_hint(how: Callable[[], str]) -> Iterator[None]:
    """Say how to go on where SIGTERM ends the command."""
    try:
        with exit_on_sigterm():
            yield
    except Terminated as ended:
        processes = Processes.current()
        then = how() if processes.is_leader else "process 0 tells what is saved"
        if ended.unsaved:
            then = f"{ended.unsaved}; {then}"
        which = "" if processes.count == 1 else f"process {processes.rank} was "
        sys.stderr.write(f"gramophone: {which}ended by SIGTERM; {then}\n")
        raise


class _PreparedRun(NamedTuple):
    """What is there before training: loaded parts of a mixture, and texts with their tokenizer."""

    published: Sequence[Checkpoint]
    run: RunContext


def _prepare(
    recipe: Recipe, store: Registry, files: Sequence[Sequence[Path]], *, device: str, progress: Progress
) -> _PreparedRun:
    """Load what is published, read the files to learn from, to decide by and to report on, and encode them."""
    place = "cpu" if recipe.mixture.kind == "static" else device  # where the arrays are that it is made of
    published = [
        load_checkpoint(store.fetch(store.resolve(address)), device=place, precision="float32")
        for address in recipe.mixture.models
    ]
    shared = mixture_tokenizer(recipe.mixture, published) if recipe.family == "mixture" else None
    trains = recipe.family != "mixture" or bool(recipe.mixture.recipes)
    read = read_texts if trains else read_fitting_text
    texts = read(*files, unit=recipe.corpus.unit, progress=progress)
    tokenizer = shared or learn_tokenizer(recipe.tokenizer, texts.train.sentences, progress=progress)
    encoded = encode_texts(tokenizer, texts, progress=progress)
    _, valid, test = files
    seen = overlaps(
        {"valid": texts.valid if valid else None, "test": texts.test if test else None},
        texts.train,
        progress=progress,
    )
    return _PreparedRun(published, RunContext(command_line(), tokenizer, texts, encoded, seen))


def _train_and_publish(
    title: str,
    recipe: Recipe,
    prepared: _PreparedRun,
    target: tuple[Registry, str],
    *,
    device: str,
    runs: ResumableRuns,
    progress: Progress,
) -> dict[str, Any]:
    published, run = prepared
    trained = train(
        title,
        recipe,
        run.tokenizer,
        run.encoded,
        published=published,
        device=device,
        progress=progress,
        runs=runs,
    )
    version = publish(*target, trained, run)
    runs.close()
    return training_result(target[0], version, trained, run, said=runs.notes)
