"""Publish a trained model as a version: metrics, provenance, model card, checkpoint."""

import datetime as dt
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Int64s
from models.cache.model import CacheModel
from models.checkpoint.folders import report_write_errors
from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import Direction, Version, check_name, version_address
from models.checkpoint.registry_interface import Registry
from models.checkpoint.write import CheckpointDescription, StorableModel, write_checkpoint
from models.mixture import MixtureModel
from models.tokenizers import Tokenizer
from training.corpus import Corpus, EncodedCorpus
from training.evaluation.breakdown import COUNTS_FILE, int8_facts, step_milliseconds, token_counts
from training.model_card import card_notes, fitted_note, model_card_files, overlap_notes
from training.progress import SILENT, HistoryRecord
from training.single_model import Trained, part_title
from training.texts import EncodedTexts, Texts

_LIBRARIES = ("gramophone-lm", "torch", "numpy", "numba", "sentencepiece")
GOLDEN_SENTENCES = 4
"""Number of inputs of the self-test."""


class RunContext(NamedTuple):
    """Inputs shared by all models of one run.

    Attributes:
        tokenizer: tokenizer of all models.
        data: facts of the texts, by split; see `facts_by_split`.
        encoded: the texts as token ids.
        overlap: facts of `training.texts.overlaps`, by split.
        token_counts: those of a training text not in memory [V], int64.
    """

    tokenizer: Tokenizer
    data: Mapping[str, Mapping[str, Any]]
    encoded: EncodedTexts
    overlap: Mapping[str, Any] = MappingProxyType({})
    token_counts: Int64s | None = None


def publish(registry: Registry, name: str, trained: Trained, run: RunContext) -> Version:
    """Describe a trained model and publish it.

    The checkpoint embeds a dynamic mixture's parts, or the model inside a cache,
    but no parts of a static mixture. Parts are also published if `publish_parts`
    is set. In an empty registry, the model becomes default, not a part.

    Raises:
        InputError: a model name is invalid.
        CheckpointError: the written checkpoint fails verification; nothing is published.
        RegistryError: a file operation failed; nothing is published.
    """
    check_name(name)
    embeds = _has_embedded_parts(trained)
    publishes = trained.recipe.mixture.publish_parts
    parts_to_write = trained.parts if embeds or publishes else ()
    is_first = publishes and not registry.models()
    with tempfile.TemporaryDirectory() as folder:
        parts, names = list[Path](), list[str]()
        with report_write_errors(Path(folder)):
            for number, part in enumerate(parts_to_write):
                path = _part_directory(registry if publishes else None, part, run, Path(folder) / str(number))
                parts.append(path)
                names.append(part_title(part) if path.is_relative_to(folder) else version_address(path))
        description = describe_model(name, trained, run, part_names=names)
        version = registry.publish(
            name,
            lambda directory: write_checkpoint(
                directory, trained.model, run.tokenizer, description, parts=parts if embeds else ()
            ),
        )
    if is_first:  # a part, published first, is the default until now
        registry.set_default(name)
    return version


def published_result(
    registry: Registry, version: Version, seconds: float, *, first_notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a version's address, directory, notes and figures, as commands print them.

    The training took `seconds`; `first_notes` precede the notes on figures.
    """
    metrics = json.loads(registry.read_file(version, "metrics.json"))
    notes = [*first_notes, *filter(None, [fitted_note(metrics)]), *card_notes(metrics)]
    notes += overlap_notes(metrics.get("overlap", {}))
    path = registry.location_of(version)
    return {"model": version.address, "path": path, "seconds": seconds, "notes": notes, **metrics}


def describe_model(
    name: str, trained: Trained, run: RunContext, *, part_names: Sequence[str] = ()
) -> CheckpointDescription:
    """Assemble a trained model's figures, provenance and card.

    `part_names` replaces the titles or addresses of its parts.
    """
    parts, recipe = _part_figures(trained, part_names), trained.recipe
    fitted = {  # on the validation text, whose files are listed
        "weights_fitted_on": recipe.family == "mixture",
        "discounts_fitted_on": recipe.family == "ngram" and recipe.ngram.discounts == "held-out",
        "lambdas_fitted_on": recipe.family == "ngram" and recipe.ngram.smoothing == "jelinek-mercer",
    }
    valid, direction = run.encoded.valid, recipe.reading_direction
    read = valid.reversed() if direction == "backward" else valid
    metrics = {
        **trained.figures,
        **trained.facts,
        "context": trained.context,
        "data": dict(run.data),
        **({"overlap": dict(run.overlap)} if run.overlap else {}),
        **{key: list(run.data["valid"]["sources"]) for key, fits in fitted.items() if fits},
        **int8_facts(trained.model, read, context=trained.context, progress=SILENT),
        **({"parts": parts} if parts else {}),
        **({"history": [record._asdict() for record in trained.history]} if trained.history else {}),
    }
    seconds, settings = round(trained.seconds, 3), recipe.model_dump(mode="json")
    return describe_checkpoint(
        name,
        trained.model,
        run.tokenizer,
        metrics=metrics,
        provenance={"recipe": settings, "seed": recipe.seed, "seconds": seconds},
        golden=golden_sentences(valid),
        direction=direction,
        histories=dict(_histories(trained)),
        extra_files=_token_counts(run),
    )


def describe_checkpoint(
    name: str,
    model: StorableModel[Any],
    tokenizer: Tokenizer,
    *,
    metrics: Mapping[str, Any],
    provenance: Mapping[str, Any],
    golden: Sequence[Sequence[int]],
    direction: Direction,
    histories: Mapping[str, Sequence[HistoryRecord]] = MappingProxyType({}),
    extra_files: Mapping[str, bytes] = MappingProxyType({}),
) -> CheckpointDescription:
    """Describe a model of this command: add card, command line and environment.

    See `CheckpointDescription` and `model_card_files` for the arguments.
    """
    created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    provenance = {
        **provenance,
        "argv": ["gramophone", *sys.argv[1:]],
        "libraries": {library: _version_of(library) for library in _LIBRARIES},
        "python": platform.python_version(),
        "git_commit": _git_commit(),
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "system": platform.system()},
    }
    description = CheckpointDescription(created, metrics, provenance, golden, extra_files, direction)
    card = model_card_files(name, model, tokenizer.kind, description, histories)
    return description._replace(card={**card, **extra_files})


def golden_sentences(text: EncodedCorpus) -> list[list[int]]:
    """Return a held-out text's first sentences as inputs of the self-test."""
    return [text.sentence(i).tolist() for i in range(min(GOLDEN_SENTENCES, text.num_sentences))]


def facts_by_split(texts: Texts) -> dict[str, dict[str, Any]]:
    """Return the facts of the texts that have sentences."""
    return {
        split: corpus_facts(corpus)
        for split, corpus in texts._asdict().items()
        if corpus is not None and len(corpus.sentences)
    }


def corpus_facts(corpus: Corpus) -> dict[str, Any]:
    """Return the hash, files and size of a text."""
    return {"sha256": corpus.sha256, "sources": corpus.sources, "sentences": len(corpus.sentences)}


def _part_figures(trained: Trained, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return every part's name, weight, cost and figures, with nested entries for its parts."""
    names = names or list(map(part_title, trained.parts))
    weights, found = trained.facts.get("weights", ()), list[dict[str, Any]]()
    rows = zip(trained.parts, names, weights, trained.part_figures, strict=True)
    for part, name, weight, figures in rows:
        inner = _part_figures(part) if isinstance(part, Trained) else []
        entry = {"name": name, "family": part.model.family, "weight": weight}
        entry |= {"step_ms": step_milliseconds(part.model), **figures}
        found.append(entry | ({"parts": inner} if inner else {}))
    return found


def _token_counts(run: RunContext) -> dict[str, bytes]:
    """Return the file of the training text's token counts, if any."""
    train, counts = run.encoded.train, run.token_counts
    if counts is None and train.num_sentences:
        counts = token_counts(train, len(run.tokenizer.vocabulary))
    if counts is None:
        return {}
    buffer = io.BytesIO()
    np.save(buffer, counts, allow_pickle=False)
    return {COUNTS_FILE: buffer.getvalue()}


def _has_embedded_parts(trained: Trained) -> bool:
    return trained.model.family in {MixtureModel.family, CacheModel.family}


def _part_directory(
    registry: Registry | None, part: Trained | Checkpoint, run: RunContext, scratch: Path
) -> Path:
    """Return a part's checkpoint folder, published to the registry or in a scratch folder.

    Inner stages, such as the mixture in a cache, are not published.
    """
    if isinstance(part, Checkpoint):
        return part.path
    if registry is not None and not _has_embedded_parts(part):
        return registry.fetch(publish(registry, part.title, part, run))
    parts = [
        _part_directory(registry, inner, run, scratch.with_name(f"{scratch.name}.{number}"))
        for number, inner in enumerate(part.parts if _has_embedded_parts(part) else ())
    ]
    scratch.mkdir()
    write_checkpoint(scratch, part.model, run.tokenizer, describe_model(part.title, part, run), parts=parts)
    return scratch


def _histories(trained: Trained) -> Iterator[tuple[str, Sequence[HistoryRecord]]]:
    """Yield the records of a model and its parts that have some, by title."""
    if trained.history:
        yield trained.title, trained.history
    for part in trained.parts:
        if isinstance(part, Trained):
            yield from _histories(part)


def _version_of(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return this code's commit, with `-dirty` if modified; None outside a checkout."""
    here = Path(__file__)
    git = ["git", "-C", str(here.parent)]
    # an installed copy may be inside an unrelated repository
    tracked = [*git, "ls-files", "--error-unmatch", here.name]
    describe = [*git, "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        for command in (tracked, describe):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603 - fixed words
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
