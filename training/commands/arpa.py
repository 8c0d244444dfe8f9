"""`gramophone models import-arpa` and `export-arpa`."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.checkpoint.registry import Address, open_registry
from models.errors import InvalidInputError
from training.console import console_progress
from training.exporting import export_arpa
from training.importing import import_arpa
from training.ngram.shrinking import CompressionSettings
from training.notes import card_notes


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
        The model's address, the file, n-grams by order, and what other readers of the file must know.

    Raises:
        LanguageModelError: bad input, or the file cannot be written; nothing is half written.
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
