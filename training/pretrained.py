"""Import of pretrained models from folders in Hugging Face's format as published models."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.checkpoint.manifest import check_name
from models.checkpoint.registry import Address, open_registry
from models.checkpoint.write import write_checkpoint
from models.errors import InvalidInputError, ManifestError, require_package
from training.console import console_progress
from training.corpus import read_corpus
from training.evaluation.evaluate import evaluate
from training.publish import corpus_facts, describe_checkpoint, golden_sentences, published_result
from training.tokenizer import encode_corpus

_GOLDEN = (
    "The first version of the report was published on Monday.",
    "It was raining, so they stayed at home.",
)


def run_import_hf(
    folder: Path, *, name: str, registry: Address, corpus: Sequence[Path] = ()
) -> dict[str, Any]:
    """Publish the model of a folder: config.json, weights in safetensors and tokenizer.json.

    Args:
        folder: the folder, as `save_pretrained` of Hugging Face's libraries writes it.
        name: name of the published model.
        registry: registry to publish to.
        corpus: held-out text files to report figures on, one sentence per line; may be empty.

    Returns:
        The new version's address, directory and figures.

    Raises:
        LanguageModelError: the input is invalid, or the registry cannot be written; nothing is published.
    """
    began = time.monotonic()
    for package in ("torch", "transformers"):
        require_package(package, "a pretrained model")
    from models.pretrained.folder import check_folder
    from models.pretrained.model import PretrainedModel  # imports torch
    from models.pretrained.tokenizer import PretrainedTokenizer

    store, progress = open_registry(registry, create=True), console_progress()
    check_name(name)
    text = read_corpus(corpus, unit="line", progress=progress) if corpus else None
    progress.start(f"reading {folder.name}", None)
    try:
        kind = check_folder(folder)["model_type"]
        tokenizer = PretrainedTokenizer(folder)
        model = PretrainedModel(folder, tokenizer.vocabulary)
    except (ManifestError, RuntimeError) as error:
        raise InvalidInputError(str(error), parameter="folder") from None
    progress.finish()
    facts: dict[str, Any] = {
        "context": "sentence",
        "pretrained": {"type": kind, "window": model.window, **tokenizer.facts},
    }
    golden = tokenizer.encode_all(_GOLDEN)
    if text is not None:
        encoded = encode_corpus(tokenizer, text.sentences, progress=progress)
        golden = golden_sentences(encoded)
        result = evaluate(model, encoded, progress=progress)
        facts |= {"test": result.facts(), "data": {"test": corpus_facts(text)}}
    provenance = {
        "source": {"format": "Hugging Face", "folder": folder.name},
        "seconds": round(time.monotonic() - began, 3),
    }
    description = describe_checkpoint(
        name, model, tokenizer, metrics=facts, provenance=provenance, golden=golden, direction="forward"
    )
    progress.start("copying the weights", None)
    version = store.publish(
        name, lambda directory: write_checkpoint(directory, model, tokenizer, description)
    )
    progress.finish()
    return published_result(store, version, time.monotonic() - began)
