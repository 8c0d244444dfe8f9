"""`gramophone train`: by a recipe, published as a new version."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.load import Checkpoint, load_checkpoint
from models.checkpoint.registry import Registry, check_name
from models.neural.device import resolve_device
from training.console import console_progress
from training.data import encode_texts, read_fitting_text, read_texts
from training.mixing import mixture_tokenizer
from training.neural.distributed import Processes, joined
from training.notes import fitted_note, notes, overlap_notes
from training.overlap import overlaps
from training.pipeline import networks_of, train, train_along
from training.progress import SILENT, Progress
from training.publishing import Run, command_line, publish
from training.recipe import Recipe, load_recipe
from training.runs import Runs
from training.tokenizing import learn_tokenizer

QUICKSTART_NAME = "mixture"


def run_train(
    recipe_name: str,
    *,
    name: str,
    registry: Path,
    corpus: Sequence[Path] = (),
    valid: Sequence[Path] = (),
    test: Sequence[Path] = (),
    assignments: Sequence[str] = (),
    device: str = "cpu",
    resume: bool = False,
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

    Returns:
        The new version's address, directory and held-out figures; nothing in the other processes.

    Raises:
        LanguageModelError: bad input, or the registry refused; nothing is half published.
    """
    check_name(name)
    recipe = load_recipe(recipe_name, assignments)
    title = Path(recipe_name).stem
    networks = networks_of(title, recipe)  # parts that cannot be trained are refused before the text is read
    with joined(resolve_device(device)) as place:
        leads = Processes.current().leads
        store = Registry(registry, create=True)
        runs = Runs(registry, name, resume=resume)
        with runs.held() if networks and leads else contextlib.nullcontext():
            progress = console_progress() if leads else SILENT
            prepared = _prepare(recipe, store, (corpus, valid, test), device=str(place), progress=progress)
            if leads:
                return _train_and_publish(
                    title, recipe, prepared, (store, name), device=str(place), runs=runs, progress=progress
                )
            run = prepared.run
            train_along(title, recipe, run.tokenizer, run.encoded, device=str(place), runs=runs)
            return {}


class _Prepared(NamedTuple):
    """What is there before training: loaded parts of a mixture, and texts with their tokenizer."""

    published: Sequence[Checkpoint]
    run: Run


def _prepare(
    recipe: Recipe, store: Registry, files: Sequence[Sequence[Path]], *, device: str, progress: Progress
) -> _Prepared:
    """Load what is published, read the files to learn from, to decide by and to report on, and encode them."""
    place = "cpu" if recipe.mixture.kind == "static" else device  # where the arrays are that it is made of
    published = [
        load_checkpoint(store.resolve(address).path, device=place, precision="float32")
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
    return _Prepared(published, Run(command_line(), tokenizer, texts, encoded, seen))


def _train_and_publish(
    title: str,
    recipe: Recipe,
    prepared: _Prepared,
    target: tuple[Registry, str],
    *,
    device: str,
    runs: Runs,
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
    metrics = json.loads((version.path / "metrics.json").read_text(encoding="utf-8"))
    told = [
        *runs.notes,
        *filter(None, [fitted_note(metrics)]),
        *notes(metrics),
        *overlap_notes(run.overlap),
    ]
    return {
        "model": version.address,
        "path": str(version.path),
        "seconds": trained.seconds,
        "notes": told,
        **metrics,
    }
