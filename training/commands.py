"""What the command line's training commands do; the command line itself is the service's."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import Registry, check_name
from models.errors import InvalidInputError
from models.neural.device import resolve_device
from models.tokenizers import Tokenizer
from training.console import console_progress
from training.corpora.default import read_default_corpus
from training.corpora.encoded import EncodedCorpus
from training.corpora.reading import read_corpus, read_lines
from training.data import encode_texts, read_fitting_text, read_texts
from training.evaluation import CONTEXTS, evaluate, summary
from training.exporting import export_arpa
from training.importing import import_arpa
from training.mixing import mixture_tokenizer
from training.ngram.shrinking import Shrinking
from training.notes import fitted_note, notes
from training.pipeline import part_recipes, train
from training.progress import Progress
from training.publishing import Run, command_line, publish
from training.recipe import load_recipe
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
) -> dict[str, Any]:
    """Train by a recipe and publish.

    Returns:
        The new version's address, directory and held-out figures.

    Raises:
        LanguageModelError: bad input, or the registry refused; nothing is half published.
    """
    check_name(name)
    recipe = load_recipe(recipe_name, assignments)
    part_recipes(recipe)  # a mixture's parts that cannot be trained are refused before the text is read
    device = str(resolve_device(device))  # before the text is read
    store = Registry(registry, create=True)
    progress = console_progress()
    place = "cpu" if recipe.mixture.kind == "static" else device  # where the arrays are that it is made of
    published = [
        load_checkpoint(store.resolve(address).path, device=place) for address in recipe.mixture.models
    ]
    shared = mixture_tokenizer(recipe.mixture, published) if recipe.family == "mixture" else None
    trains = recipe.family != "mixture" or bool(recipe.mixture.recipes)
    read = read_texts if trains else read_fitting_text
    texts = read(corpus, valid, test, unit=recipe.corpus.unit, progress=progress)
    tokenizer = shared or learn_tokenizer(recipe.tokenizer, texts.train.sentences, progress=progress)
    encoded = encode_texts(tokenizer, texts, progress=progress)
    title = Path(recipe_name).stem
    trained = train(title, recipe, tokenizer, encoded, published=published, device=device, progress=progress)
    run = Run(command_line(), tokenizer, texts, encoded)
    version = publish(store, name, trained, run)
    metrics = json.loads((version.path / "metrics.json").read_text(encoding="utf-8"))
    told = [*filter(None, [fitted_note(metrics)]), *notes(metrics)]
    return {
        "model": version.address,
        "path": str(version.path),
        "seconds": trained.seconds,
        "notes": told,
        **metrics,
    }


def run_evaluate(
    address: str, *, corpus: Sequence[Path], registry: Path, context: str, unit: str, window: int, device: str
) -> dict[str, Any]:
    """Held-out figures of a published model on files, or on the default corpus's test part.

    Raises:
        LanguageModelError: the model, a file or an option is wrong.
    """
    if context not in CONTEXTS:
        raise InvalidInputError(
            f"--context is {context!r}, it can be {', '.join(CONTEXTS)}", parameter="context"
        )
    if window < 1:
        raise InvalidInputError(f"--window is {window}, it must be at least 1", parameter="window")
    version = Registry(registry).resolve(address)
    progress = console_progress()
    checkpoint = load_checkpoint(version.path, device=device)
    backward = checkpoint.manifest.direction == "backward"
    if backward and context != "sentence":
        raise InvalidInputError(
            f"--context is {context!r}, but {version.address} reads right to left: only 'sentence' is possible",
            parameter="context",
        )
    encoded = _encoded_for(checkpoint.tokenizer, corpus, context, unit, progress)
    if backward:
        encoded = encoded.reversed()
    result = evaluate(checkpoint.model, encoded, context=context, window=window, progress=progress)
    return {"model": version.address, **summary(result)}


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


def _encoded_for(
    tokenizer: Tokenizer, corpus: Sequence[Path], context: str, unit: str, progress: Progress
) -> EncodedCorpus:
    if context == "document" and corpus:
        texts = ["\n".join(read_lines(path)) for path in corpus]
    elif corpus:
        texts = read_corpus(corpus, unit=unit, progress=progress).sentences
    else:
        texts = read_default_corpus(progress).test.sentences
        texts = ["\n".join(texts)] if context == "document" else texts
    return encode_corpus(tokenizer, texts, progress=progress)
