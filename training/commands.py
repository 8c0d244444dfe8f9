"""What the command line's training commands do; the command line itself is the service's."""

import contextlib
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.load import Checkpoint, load_checkpoint
from models.checkpoint.registry import Registry, check_name
from models.errors import InvalidInputError
from models.neural.device import resolve_device
from training.console import console_progress
from training.corpora.default import read_default_corpus
from training.corpora.reading import read_corpus, read_lines
from training.data import encode_texts, read_fitting_text, read_texts
from training.evaluating.distributions import DEFAULT_SAMPLE
from training.evaluating.published import OOV_POLICY, Way, check_comparable, comparison, details
from training.evaluating.scoring import CONTEXTS, score_corpus
from training.evaluation import figures, summary
from training.exporting import export_arpa
from training.importing import import_arpa
from training.mixing import mixture_tokenizer
from training.neural.distributed import Processes, joined
from training.ngram.shrinking import Shrinking
from training.notes import fitted_note, notes, overlap_notes
from training.overlap import overlap_with_files, overlaps
from training.pipeline import networks_of, train, train_along
from training.progress import SILENT, Progress
from training.publishing import Run, command_line, publish
from training.recipe import Recipe, load_recipe
from training.runs import Runs
from training.tokenizing import encode_corpus, learn_tokenizer

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


def run_evaluate(
    address: str,
    *,
    corpus: Sequence[Path],
    registry: Path,
    context: str,
    unit: str,
    window: int,
    device: str,
    precision: str = "auto",
    detail: bool = False,
    sample: int = DEFAULT_SAMPLE,
    against: str | None = None,
    overlap: Sequence[Path] = (),
) -> dict[str, Any]:
    """Held-out figures of a published model on files, or on the default corpus's test part.

    Args:
        address: of the model.
        corpus: the files.
        registry: where the model is.
        context: see `training.evaluating.scoring`.
        unit: what a sentence is in the files.
        window: tokens in a window, for `document`.
        device: to compute on.
        precision: of networks, see `models.checkpoint.load`.
        detail: tell of the predictions' entropy, and figures by frequency and position, too.
        sample: predictions of which whole distributions are looked at, at most.
        against: the address of a second model to compare with.
        overlap: training files to look for the text in.

    Raises:
        LanguageModelError: a model, a file or an option is wrong.
    """
    if context not in CONTEXTS:
        raise InvalidInputError(
            f"--context is {context!r}, it can be {', '.join(CONTEXTS)}", parameter="context"
        )
    for name, value in {"window": window, "sample": sample}.items():
        if value < 1:
            raise InvalidInputError(f"--{name} is {value}, it must be at least 1", parameter=name)
    store = Registry(registry)
    version, other = store.resolve(address), None if against is None else store.resolve(against)
    progress = console_progress()
    checkpoint = load_checkpoint(version.path, device=device, precision=precision)
    second = None if other is None else load_checkpoint(other.path, device=device, precision=precision)
    if second is not None and other is not None:
        check_comparable(checkpoint, second, (version.address, other.address))
    backward = checkpoint.manifest.direction == "backward"
    if backward and context != "sentence":
        raise InvalidInputError(
            f"--context is {context!r}, but {version.address} reads right to left: only 'sentence' is possible",
            parameter="context",
        )
    texts = _held_out_texts(corpus, context, unit, progress)
    encoded = encode_corpus(checkpoint.tokenizer, texts, progress=progress)
    encoded = encoded.reversed() if backward else encoded
    targets = score_corpus(checkpoint.model, encoded, context=context, window=window, progress=progress)
    if not len(targets.tokens):
        raise InvalidInputError("the text has no token to predict", parameter="corpus")
    result = {
        "model": version.address,
        "precision": checkpoint.precision,
        **summary(figures(checkpoint.model, encoded, targets, context=context)),
        "oov_policy": OOV_POLICY,
    }
    way = Way(context, window, sample)
    if detail:
        result["detail"] = details(checkpoint, encoded, targets, way, progress=progress)
    if second is not None and other is not None:
        compared = comparison(checkpoint, second, encoded, targets, way, progress=progress)
        result["against"] = {"model": other.address, **compared}
    if overlap:
        sentences = [line for text in texts for line in text.split("\n")]
        found = overlap_with_files(sentences, overlap, unit=unit, progress=progress).as_facts()
        result["overlap"] = {"training_text": [path.name for path in overlap], **found}
        result["notes"] = list(overlap_notes({"evaluated text": found}))
    return result


def run_dynamic_evaluation(
    address: str, *, corpus: Sequence[Path], registry: Path, unit: str, device: str
) -> dict[str, Any]:
    """Figures of a published neural model, a copy of which learns from the text as it goes, a stream.

    Raises:
        LanguageModelError: the model has no gradient, or it or a file is wrong.
    """
    from training.dynamic_evaluation import dynamic_evaluation  # brings in torch

    version = Registry(registry).resolve(address)
    progress = console_progress()
    checkpoint = load_checkpoint(
        version.path, device=device, precision="float32"
    )  # what learns needs its weights
    texts = _held_out_texts(corpus, "stream", unit, progress)
    encoded = encode_corpus(checkpoint.tokenizer, texts, progress=progress)
    encoded = encoded.reversed() if checkpoint.manifest.direction == "backward" else encoded
    targets = dynamic_evaluation(checkpoint.model, encoded, progress=progress)
    if not len(targets.tokens):
        raise InvalidInputError("the text has no token to predict", parameter="corpus")
    return {
        "model": version.address,
        "precision": checkpoint.precision,
        **summary(figures(checkpoint.model, encoded, targets, context="stream")),
        "oov_policy": OOV_POLICY,
        "dynamic": True,
        "notes": ["a copy of the model went on learning from the text as it was scored"],
    }


def run_import_arpa(
    file: Path,
    *,
    name: str,
    registry: Path,
    corpus: Sequence[Path] = (),
    lowercase: bool = False,
    prune_entropy: float = 0.0,
    quantize_bits: int | None = None,
) -> dict[str, Any]:
    """Publish the model of an ARPA file, smaller if that is wanted.

    Returns:
        The new version's address, directory, figures, and remarks on the file.

    Raises:
        LanguageModelError: bad input, or the registry refused; nothing is half published.
    """
    began = time.monotonic()
    if not 0 <= prune_entropy < math.inf:
        raise InvalidInputError(
            f"--prune-entropy is {prune_entropy}, it must be at least 0 and finite", parameter="prune_entropy"
        )
    if quantize_bits not in {None, 8}:
        raise InvalidInputError(
            f"--quantize-bits is {quantize_bits}, it can only be 8", parameter="quantize_bits"
        )
    version = import_arpa(
        file,
        name=name,
        registry=Registry(registry, create=True),
        corpus=corpus,
        lowercase=lowercase,
        shrinking=Shrinking(prune_entropy, quantise=quantize_bits is not None),
        progress=console_progress(),
    )
    metrics = json.loads((version.path / "metrics.json").read_text(encoding="utf-8"))
    seconds = time.monotonic() - began
    return {
        "model": version.address,
        "path": str(version.path),
        "seconds": seconds,
        "notes": list(notes(metrics)),
        **metrics,
    }


def run_export_arpa(address: str, file: Path, *, registry: Path) -> dict[str, Any]:
    """Write a published n-gram model as an ARPA file.

    Returns:
        The model's address, the file, n-grams by order, and what other readers of the file must know.

    Raises:
        LanguageModelError: bad input, or the file cannot be written; nothing is half written.
    """
    began = time.monotonic()
    exported = export_arpa(address, file, registry=Registry(registry), progress=console_progress())
    log_zero = exported.written.log_zero
    return {
        "model": exported.address,
        "path": str(file),
        "seconds": time.monotonic() - began,
        "bytes": file.stat().st_size,
        "ngrams": list(exported.written.counts),
        "escaped_words": exported.written.escaped_words,
        "log_zero": None if log_zero is None else float(log_zero),
        "splits_at_spaces": exported.splits_at_spaces,
    }


def _held_out_texts(corpus: Sequence[Path], context: str, unit: str, progress: Progress) -> Sequence[str]:
    """Sentences; of `document` whole files."""
    if not corpus:
        texts = read_default_corpus(progress).test.sentences
        return ["\n".join(texts)] if context == "document" else texts
    if context == "document":
        return ["\n".join(read_lines(path)) for path in corpus]
    return read_corpus(corpus, unit=unit, progress=progress).sentences
