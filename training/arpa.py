"""ARPA files: publish a model from one, and write a published n-gram model to one."""

import datetime as dt
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models.checkpoint.load import load_checkpoint
from models.checkpoint.manifest import Direction, Version, check_name
from models.checkpoint.registry import Address, open_registry
from models.checkpoint.registry_interface import Registry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.errors import InvalidInputError, UnsupportedParameterError
from models.ngram.arpa_reader import ArpaReport, read_arpa
from models.ngram.arpa_writer import ArpaWriteReport, write_arpa
from models.ngram.build import NGrams, list_ngrams
from models.ngram.model import NGramModel
from models.tokenizers import Tokenizer, WordTokenizer
from models.vocabulary import CONTROL_TOKENS
from training.console import console_progress
from training.corpus import Corpus, EncodedCorpus, read_corpus
from training.evaluation.evaluate import evaluate, evaluation_facts
from training.model_card import CardData, card_notes, model_card_files
from training.ngram.pruning import NO_COMPRESSION, CompressionSettings, compress
from training.progress import Progress
from training.publish import command_line, environment_facts
from training.tokenizer import encode_corpus
from training.trained import measure_row_sums

_GOLDEN_SEQUENCES = 4


def import_arpa(
    path: Path,
    *,
    name: str,
    registry: Registry,
    corpus: Sequence[Path] = (),
    lowercase: bool = False,
    shrinking: CompressionSettings = NO_COMPRESSION,
    progress: Progress,
) -> Version:
    """Publish an n-gram model read from an ARPA file, with a tokenizer that splits at white space.

    Args:
        path: the ARPA file, plain or compressed.
        name: of the published model.
        registry: to publish in.
        corpus: held-out text files to report figures on, one sentence a line; may be empty.
        lowercase: whether the tokenizer lower-cases text, as the model's training text was.
        shrinking: pruning and quantisation before publication.
        progress: reports each stage.

    Raises:
        InvalidInputError: the model name is invalid, or the model cannot be compressed as requested.
        FormatError: the ARPA file or the text is malformed; nothing is published.
    """
    check_name(name)
    began = time.monotonic()
    text = read_corpus(corpus, unit="line", progress=progress) if corpus else None
    progress.start(f"reading {path.name}", path.stat().st_size if path.is_file() else None)
    vocabulary, orders, report = read_arpa(path, on_read=progress.advance)
    progress.finish()
    model, listed, facts = compress(orders, vocabulary, shrinking, progress=progress)
    golden = _golden_sequences(listed)
    del orders, listed  # as large as the model
    progress.start("summing up probabilities", None)
    sums = measure_row_sums(model)
    model.normalised = sums.normalised
    progress.finish()
    tokenizer = WordTokenizer(vocabulary, lowercase=lowercase)
    facts |= {"context": "sentence", "normalisation": sums.as_facts(), "arpa": _file_facts(report)}
    if text is not None:
        encoded = encode_corpus(tokenizer, text.sentences, progress=progress)
        golden = [encoded.sentence(i).tolist() for i in range(min(_GOLDEN_SEQUENCES, encoded.num_sentences))]
        facts |= _held_out_figures(model, encoded, text, backward=report.backward, progress=progress)
    provenance = {
        "source": {"format": "ARPA", "file": path.name, "sha256": report.sha256},
        "argv": command_line(),
        "seconds": round(time.monotonic() - began, 3),
        "lowercase": lowercase,
        **environment_facts(),
    }
    created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    direction: Direction = "backward" if report.backward else "forward"
    card = model_card_files(
        CardData(
            name=name,
            family=model.family,
            created=created,
            parameters=model.num_parameters,
            vocab_size=len(vocabulary),
            tokenizer=tokenizer.kind,
            metrics=facts,
            provenance=provenance,
            histories={},
            direction=direction,
        )
    )
    description = CheckpointDescription(created, facts, provenance, golden, card, direction)
    return registry.publish(
        name, lambda directory: write_checkpoint(directory, model, tokenizer, description)
    )


def _golden_sequences(orders: Sequence[NGrams]) -> list[list[int]]:
    """Return evenly spaced n-grams of the highest non-empty order, without control tokens, as golden inputs."""
    highest = max(order for order, ngrams in enumerate(orders, start=1) if len(ngrams.words))
    rows = np.linspace(0, len(orders[highest - 1].words) - 1, _GOLDEN_SEQUENCES).astype(np.int64)
    columns = []
    for ngrams in reversed(orders[:highest]):
        columns.append(ngrams.words[rows])
        rows = ngrams.prefixes[rows].astype(np.int64)
    return [
        [word for word in words if word >= len(CONTROL_TOKENS)]
        for words in np.stack(columns[::-1], axis=1).tolist()
    ]


def _held_out_figures(
    model: NGramModel, encoded: EncodedCorpus, text: Corpus, *, backward: bool, progress: Progress
) -> dict[str, Any]:
    """Return held-out figures and the hash, files and size of the text."""
    result = evaluate(model, encoded.reversed() if backward else encoded, progress=progress)
    data = {"sha256": text.sha256, "sources": text.sources, "sentences": len(text.sentences)}
    return {"test": evaluation_facts(result), "data": {"test": data}}


def _file_facts(report: ArpaReport) -> dict[str, Any]:
    """Return the report's irregularities; hash and direction are recorded elsewhere."""
    return {key: value for key, value in report._asdict().items() if key not in {"sha256", "backward"}}


class ArpaExport(NamedTuple):
    """Result of exporting a model as an ARPA file.

    Attributes:
        address: of the model, with its version.
        written: counts and escapes of the file.
        splits_at_spaces: whether the file's words are exactly the white-space tokens of a text.
    """

    address: str
    written: ArpaWriteReport
    splits_at_spaces: bool


def export_arpa(address: str, path: Path, *, registry: Registry, progress: Progress) -> ArpaExport:
    """Write a published n-gram model as an ARPA file.

    Args:
        address: of the model.
        path: of the file; compressed if it ends in .gz, .xz or .zst.
        registry: holds the model.
        progress: counts n-grams.

    Raises:
        UnsupportedParameterError: the model is of another family.
        FormatError: the file cannot be written.
        CheckpointError: the model is damaged.
    """
    version = registry.resolve(address)
    checkpoint = load_checkpoint(registry.fetch(version))
    model = checkpoint.model
    if not isinstance(model, NGramModel):
        raise UnsupportedParameterError(
            f"{version.address} is of the family {model.family!r}; only n-gram models, static mixtures among them, "
            "can be written as ARPA files",
            parameter="model",
        )
    orders = list_ngrams(model.automaton)
    progress.start(f"writing {path.name}", model.automaton.num_arcs)
    backward = checkpoint.manifest.direction == "backward"
    written = write_arpa(path, model.vocabulary, orders, backward=backward, on_write=progress.advance)
    progress.finish()
    return ArpaExport(version.address, written, _splits_at_spaces(checkpoint.tokenizer))


def _splits_at_spaces(tokenizer: Tokenizer) -> bool:
    return isinstance(tokenizer, WordTokenizer) and tokenizer.pattern is None and not tokenizer.lowercase


def run_import_arpa(
    file: Path,
    *,
    name: str,
    registry: Address,
    corpus: Sequence[Path] = (),
    lowercase: bool = False,
    prune_entropy: float = 0.0,
    quantize_bits: int | None = None,
) -> dict[str, Any]:
    """Publish the model of an ARPA file, optionally pruned or quantised.

    Returns:
        The new version's address, directory, figures, and remarks on the file.

    Raises:
        LanguageModelError: bad input, or the registry refused; nothing is partly published.
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
    store = open_registry(registry, create=True)
    version = import_arpa(
        file,
        name=name,
        registry=store,
        corpus=corpus,
        lowercase=lowercase,
        shrinking=CompressionSettings(prune_entropy, quantise=quantize_bits is not None),
        progress=console_progress(),
    )
    metrics = json.loads(store.read_file(version, "metrics.json"))
    seconds = time.monotonic() - began
    return {
        "model": version.address,
        "path": store.location_of(version),
        "seconds": seconds,
        "notes": list(card_notes(metrics)),
        **metrics,
    }


def run_export_arpa(address: str, file: Path, *, registry: Address) -> dict[str, Any]:
    """Write a published n-gram model as an ARPA file.

    Returns:
        The model's address, the file, n-grams by order, and facts that readers of the file need.

    Raises:
        LanguageModelError: bad input, or the file cannot be written; no partial file is left.
    """
    began = time.monotonic()
    exported = export_arpa(address, file, registry=open_registry(registry), progress=console_progress())
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
