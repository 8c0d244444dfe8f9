"""Publication of a trained model as a version, of ARPA files and pretrained models; export as ARPA files.

Words of ARPA files can be SentencePiece pieces: spelled as such, or each as the
character of the code point piece id + 100, as NeMo's `train_kenlm.py` writes them.
"""

import datetime as dt
import io
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib import metadata
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Int64s
from models.cache.model import CacheModel
from models.checkpoint.folders import report_write_errors
from models.checkpoint.load import (
    Checkpoint,
    CheckpointDescription,
    StorableModel,
    load_checkpoint,
    write_checkpoint,
)
from models.checkpoint.manifest import Direction, Version, check_name, version_address
from models.checkpoint.registry import Address, open_registry
from models.checkpoint.registry_interface import Registry
from models.cores import available_cores
from models.errors import InputError, ManifestError, UnsupportedError, require_package
from models.language_model import CONTROL_TOKENS, Vocabulary
from models.mixture import MixtureModel
from models.ngram.arpa_reader import read_arpa
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import NGrams, list_ngrams
from models.ngram.model import NGramModel
from models.tokenizers import ListedPieces, Tokenizer, WordTokenizer, read_piece_model
from models.word_forms import WordForms
from training.corpus import Corpus, EncodedCorpus, read_corpus
from training.evaluation.breakdown import COUNTS_FILE, int8_facts, step_milliseconds, token_counts
from training.evaluation.evaluate import evaluate
from training.model_card import card_notes, fitted_note, model_card_files, overlap_notes
from training.ngram.pruning import compress
from training.progress import SILENT, HistoryRecord, console_progress
from training.single_model import Trained, part_title, row_sum_facts
from training.texts import EncodedTexts, Texts
from training.tokenizer import encode_corpus

_MISSPELLINGS_NAMED = 5
_LIBRARIES = ("gramophone-lm", "torch", "numpy", "numba", "sentencepiece")
GOLDEN_SENTENCES = 4
"""Number of inputs of the self-test."""

ENCODINGS = ("pieces", "nemo")
"""Spellings of SentencePiece pieces in ARPA files."""

_NEMO_OFFSET = 100  # DEFAULT_TOKEN_OFFSET in NeMo's ctc_beam_decoding.py
_WRITTEN_SENTENCES = (
    "The first version of the report was published on Monday.",
    "It was raining, so they stayed at home.",
)
"""Golden sentences of models of written text."""


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
    but no parts of a static mixture. Parts, also unused ones, are also published if
    `publish_parts` is set. In an empty registry, the model becomes default, not a part.

    Raises:
        InputError: a model name is invalid.
        CheckpointError: the written checkpoint fails verification; nothing is published.
        RegistryError: a file operation failed; nothing is published.
    """
    check_name(name)
    embeds = _has_embedded_parts(trained)
    publishes = trained.recipe.mixture.publish_parts
    parts_to_write = trained.parts if embeds or publishes else ()
    num_parts = len(parts_to_write)
    if publishes:
        parts_to_write = [*parts_to_write, *trained.unused]
    is_first = publishes and not registry.models()
    with tempfile.TemporaryDirectory() as folder:
        parts, names = list[Path](), list[str]()
        with report_write_errors(Path(folder)):
            for number, part in enumerate(parts_to_write):
                path = _part_directory(registry if publishes else None, part, run, Path(folder) / str(number))
                parts.append(path)
                names.append(part_title(part) if path.is_relative_to(folder) else version_address(path))
        description = describe_model(name, trained, run, part_names=names[:num_parts])
        version = registry.publish(
            name,
            lambda directory: write_checkpoint(
                directory,
                trained.model,
                run.tokenizer,
                description,
                parts=parts[:num_parts] if embeds else (),
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
        **_restored(run.tokenizer, direction),
        **_misspellings(run.tokenizer),
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
        "usable_cores": available_cores(),
    }
    description = CheckpointDescription(created, metrics, provenance, golden, extra_files, direction)
    card = model_card_files(name, model, tokenizer.kind, description, histories)
    return description._replace(card={**card, **extra_files})


def _restored(tokenizer: Tokenizer, direction: Direction) -> dict[str, Any]:
    """Return what a model can restore in texts that lack it, for metrics.json."""
    written = WordForms.of(tokenizer)
    if direction == "backward" or not (written.marks or written.has_capitals):
        return {}
    return {"restores": {"capitals": written.has_capitals, "marks": written.marks}}


def _misspellings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the number of forms that are not offered, and the most frequent, for metrics.json."""
    words = tokenizer.misspellings.words
    examples = dict(islice(words.items(), _MISSPELLINGS_NAMED))
    return {"misspellings": {"forms": len(words), "examples": examples}} if words else {}


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
        if isinstance(part, Trained) and "throughput" in part.facts:
            entry["throughput"] = part.facts["throughput"]
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
    inner_parts = part.parts if _has_embedded_parts(part) else ()
    if registry is not None:
        inner_parts = [*inner_parts, *part.unused]
    parts = [
        _part_directory(registry, inner, run, scratch.with_name(f"{scratch.name}.{number}"))
        for number, inner in enumerate(inner_parts)
    ]
    scratch.mkdir()
    description = describe_model(part.title, part, run)
    write_checkpoint(scratch, part.model, run.tokenizer, description, parts=parts[: len(part.parts)])
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


class _Import:
    """Import of a model into a registry, evaluated on held-out files, if any."""

    def __init__(self, name: str, registry: Address, corpus: Sequence[Path]) -> None:
        self._began, self._name = time.monotonic(), name
        self._store, self.progress = open_registry(registry, create=True), console_progress()
        check_name(name)
        self._text = read_corpus(corpus, unit="line", progress=self.progress) if corpus else None

    def publish(
        self,
        model: StorableModel[Any],
        tokenizer: Tokenizer,
        facts: dict[str, Any],
        golden: Sequence[Sequence[int]],
        source: Mapping[str, str],
        *,
        direction: Direction = "forward",
        **provenance: object,
    ) -> dict[str, Any]:
        """Evaluate and publish the model; the held-out text, if given, replaces the `golden` inputs."""
        if self._text is not None:
            encoded = encode_corpus(tokenizer, self._text.sentences, progress=self.progress)
            golden = golden_sentences(encoded)
            read = encoded.reversed() if direction == "backward" else encoded
            result = evaluate(model, read, progress=self.progress)
            facts |= {"test": result.facts(), "data": {"test": corpus_facts(self._text)}}
            facts |= int8_facts(model, encoded, context="sentence", progress=self.progress)
        seconds = round(time.monotonic() - self._began, 3)
        description = describe_checkpoint(
            self._name,
            model,
            tokenizer,
            metrics=facts,
            provenance={"source": source, "seconds": seconds, **provenance},
            golden=golden,
            direction=direction,
        )
        copying = self.progress.stage("copying the weights")
        with nullcontext() if isinstance(model, NGramModel) else copying:
            version = self._store.publish(
                self._name, lambda directory: write_checkpoint(directory, model, tokenizer, description)
            )
        return published_result(self._store, version, time.monotonic() - self._began)


def run_import_arpa(
    file: Path,
    *,
    name: str,
    registry: Address,
    corpus: Sequence[Path] = (),
    lowercase: bool = False,
    pieces_of: Path | None = None,
    encoding: str = "pieces",
    prune_entropy: float = 0.0,
    quantize_bits: int | None = None,
) -> dict[str, Any]:
    """Publish an ARPA file's model, with a tokenizer that splits at white space or into pieces.

    See `gramophone models import-arpa` for the arguments; `pieces_of` is its `--tokenizer`.

    Returns:
        The new version's address, directory, figures, and notes on the file.

    Raises:
        DomainError: invalid input, or an unwritable registry; nothing is published.
    """
    _check_options(lowercase, encoding, prune_entropy, quantize_bits, has_pieces=pieces_of is not None)
    imported = _Import(name, registry, corpus)
    progress = imported.progress
    with progress.stage(f"reading {file.name}", file.stat().st_size if file.is_file() else None):
        vocabulary, orders, report = read_arpa(file, on_read=progress.advance)
    if lowercase and (capital := [word for word in vocabulary.ids if word != word.lower()]):
        raise InputError(
            f"--lowercase is for a model of lower-cased text, but {len(capital):,} of {len(vocabulary.ids):,} words of "
            f"{file.name}, such as {capital[0]!r:.80}, have capitals and would never be found: omit --lowercase, or "
            "lower-case the file first, for example with sed 's/.*/\\L&/'",
            param="lowercase",
        )
    tokenizer: Tokenizer
    irregularities = {k: v for k, v in report._asdict().items() if k not in {"sha256", "backward"}}
    if pieces_of is None:
        tokenizer = WordTokenizer(vocabulary, lowercase=lowercase)
    else:
        tokenizer = _piece_tokenizer(vocabulary, pieces_of, encoding=encoding)
        irregularities |= {"split_words": 0, "unlisted_pieces": tokenizer.num_unlisted}
        vocabulary = tokenizer.vocabulary
    model, listed, facts = compress(
        orders, vocabulary, prune_entropy=prune_entropy, quantise=quantize_bits is not None, progress=progress
    )
    golden = _golden_sequences(listed)
    del orders, listed  # as large as the model
    with progress.stage("summing probabilities"):
        sums = row_sum_facts(model)
        model.normalised = sums["normalised"]
    facts |= {"context": "sentence", "normalisation": sums, "arpa": irregularities}
    return imported.publish(
        model,
        tokenizer,
        facts,
        golden,
        {"format": "ARPA", "file": file.name, "sha256": report.sha256},
        direction="backward" if report.backward else "forward",
        lowercase=lowercase,
    )


def _check_options(
    lowercase: bool, encoding: str, prune_entropy: float, quantize_bits: int | None, *, has_pieces: bool
) -> None:
    if not 0 <= prune_entropy < math.inf:
        problem = f"--prune-entropy is {prune_entropy}; it must be at least 0 and finite"
        raise InputError(problem, param="prune_entropy")
    if quantize_bits not in {None, 8}:
        problem = f"--quantize-bits is {quantize_bits}; it must be 8"
        raise InputError(problem, param="quantize_bits")
    if encoding not in ENCODINGS or (encoding != "pieces" and not has_pieces):
        problem = f"--encoding is {encoding!r}; it can be {' or '.join(ENCODINGS)}, with --tokenizer"
        raise InputError(problem, param="encoding")
    if has_pieces and lowercase:
        problem = "--lowercase is for words; the SentencePiece model of --tokenizer normalises texts itself"
        raise InputError(problem, param="lowercase")


def _piece_tokenizer(words: Vocabulary, path: Path, *, encoding: str) -> ListedPieces:
    """Return the tokenizer of an ARPA file of SentencePiece pieces."""
    try:
        model = path.read_bytes()
        if encoding == "nemo":
            pieces = read_piece_model(model)
            ids = [ord(word) - _NEMO_OFFSET if len(word) == 1 else -1 for word in words.ids]
            size = pieces.GetPieceSize()
            if wrong := [word for word, i in zip(words.ids, ids, strict=True) if not 0 <= i < size]:
                raise InputError(
                    f"--encoding is nemo, but {len(wrong):,} of the {len(ids):,} words of the ARPA file, such as "
                    f"{wrong[0]!r:.80}, are not one character from U+{_NEMO_OFFSET:04X} to "
                    f"U+{_NEMO_OFFSET + size - 1:04X}, the codes of the pieces in {path.name}",
                    param="encoding",
                )
            words = Vocabulary(map(pieces.IdToPiece, ids))
        return ListedPieces(model, words)
    except (OSError, ManifestError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"--tokenizer {path}: {problem}", param="tokenizer") from None


def _golden_sequences(orders: Sequence[NGrams]) -> list[list[int]]:
    """Return golden inputs: evenly spaced n-grams of the highest non-empty order, without control tokens."""
    highest = max(order for order, ngrams in enumerate(orders, start=1) if len(ngrams.words))
    rows = np.linspace(0, len(orders[highest - 1].words) - 1, GOLDEN_SENTENCES).astype(np.int64)
    columns = []
    for ngrams in reversed(orders[:highest]):
        columns.append(ngrams.words[rows])
        rows = ngrams.prefixes[rows].astype(np.int64)
    return [
        [word for word in words if word >= len(CONTROL_TOKENS)]
        for words in np.stack(columns[::-1], axis=1).tolist()
    ]


def run_export_arpa(address: str, file: Path, *, registry: Address) -> dict[str, Any]:
    """Write a published n-gram model as an ARPA file.

    See `gramophone models export-arpa` for the arguments.

    Returns:
        The model's address, the file, n-grams by order, and facts for its readers, such
        as `splits_at_spaces`, True if its words are exactly a text's white-space tokens.

    Raises:
        DomainError: invalid input, another family, or a file that cannot be written; no partial file remains.
    """
    began = time.monotonic()
    store, progress = open_registry(registry), console_progress()
    version = store.resolve(address)
    checkpoint = load_checkpoint(store.fetch(version), members=False)
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    if not isinstance(model, NGramModel):
        raise UnsupportedError(
            f"{version.address} is of the family {model.family!r}; only n-gram models, including static mixtures, "
            "can be written as ARPA files",
            param="model",
        )
    orders = list_ngrams(model.automaton)
    with progress.stage(f"writing {file.name}", model.automaton.num_arcs):
        backward = checkpoint.manifest.direction == "backward"
        written = write_arpa(file, model.vocabulary, orders, backward=backward, on_write=progress.advance)
    splits = isinstance(tokenizer, WordTokenizer) and tokenizer.pattern is None
    splits = splits and not tokenizer.normaliser.changes_text
    return {
        "model": version.address,
        "path": str(file),
        "seconds": time.monotonic() - began,
        "bytes": file.stat().st_size,
        "ngrams": list(written.counts),
        "escaped_words": written.escaped_words,
        "log_zero": None if written.log_zero is None else float(written.log_zero),
        "splits_at_spaces": splits,
    }


def run_import_hf(
    folder: Path, *, name: str, registry: Address, corpus: Sequence[Path] = ()
) -> dict[str, Any]:
    """Publish the model of a folder: config.json, weights in safetensors and tokenizer.json.

    See `gramophone models import-hf` for the arguments.

    Returns:
        The new version's address, directory and figures.

    Raises:
        DomainError: invalid input, or an unwritable registry; nothing is published.
    """
    for package in ("torch", "transformers"):
        require_package(package, "a pretrained model")
    from models.pretrained.folder import check_folder
    from models.pretrained.model import PretrainedModel  # imports torch
    from models.pretrained.tokenizer import PretrainedTokenizer, check_tokenizer

    imported = _Import(name, registry, corpus)
    with imported.progress.stage(f"reading {folder.name}"):
        try:
            kind = check_folder(folder)["model_type"]
            check_tokenizer(folder)
            tokenizer = PretrainedTokenizer(folder)
            model = PretrainedModel(folder, tokenizer.vocabulary)
        except (ManifestError, RuntimeError) as error:
            raise InputError(str(error), param="folder") from None
    pretrained = {"type": kind, "window": model.window, **tokenizer.facts}
    golden, source = (
        tokenizer.encode_all(_WRITTEN_SENTENCES),
        {"format": "Hugging Face", "folder": folder.name},
    )
    facts = {"context": "sentence", "pretrained": pretrained}
    return imported.publish(model, tokenizer, facts, golden, source)
