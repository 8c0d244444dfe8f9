"""Read a checkpoint back: verify its bytes, rebuild the model, replay its golden test."""

import importlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.golden import replay_golden
from models.checkpoint.manifest import Manifest, read_manifest, verify_files
from models.checkpoint.write import PARTS
from models.errors import CheckpointError, IncompatibleVersionError, ManifestError
from models.mixture import MixtureModel
from models.protocol import LanguageModel
from models.tokenizers import Tokenizer, load_tokenizer
from models.vocabulary import Vocabulary

FAMILIES = {
    "ngram": ("models.ngram.model", "NGramModel"),
    "lstm": ("models.neural.model", "RecurrentModel"),
    "gru": ("models.neural.model", "RecurrentModel"),
}
"""Where each family's class is; imported when one is loaded, so an n-gram server needs no torch."""


class Checkpoint(NamedTuple):
    """A loaded version.

    Attributes:
        manifest: what it says it is.
        model: ready to answer.
        tokenizer: the one that belongs to it.
        metrics: held-out figures, as published.
        path: its directory.
    """

    manifest: Manifest
    model: LanguageModel[Any]
    tokenizer: Tokenizer
    metrics: dict[str, Any]
    path: Path


def load_checkpoint(directory: Path, *, device: str = "cpu") -> Checkpoint:
    """Load a version: hashes first, then the model, then its golden test, which warms it up.

    Args:
        directory: the version's directory.
        device: `cpu`, `cuda`, `cuda:1`, … or `auto`; n-gram models compute on the CPU whatever it says.

    Raises:
        InvalidInputError: there is no such device.
        CheckpointError: a byte, the format or an answer is not what was published.
    """
    manifest = read_manifest(directory)
    verify_files(directory, manifest)
    tokenizer = load_tokenizer(directory)
    if (
        tokenizer.fingerprint != manifest.tokenizer_fingerprint
        or tokenizer.vocabulary.fingerprint != manifest.vocabulary_fingerprint
    ):
        raise ManifestError(f"{directory}: the tokenizer is not the one that the manifest names")
    device = _resolved(device, manifest.family)
    try:
        model = _build(directory, manifest, tokenizer.vocabulary, device)
        replay_golden(directory, model, device=device)
        metrics = json.loads((directory / "metrics.json").read_text(encoding="utf-8"))
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:  # the hashes agreed
        if "cannot cache function" in str(error):  # numba compiles the n-gram kernels once and keeps them
            raise CheckpointError(
                f"{directory}: no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one"
            ) from error
        raise ManifestError(
            f"{directory}: cannot be rebuilt as a model of the family {manifest.family}: {error}"
        ) from error
    return Checkpoint(manifest, model, tokenizer, metrics, directory)


def _resolved(device: str, family: str) -> str:
    if family == "ngram":
        return "cpu"
    from models.neural.device import resolve_device  # brings in torch, as the model is about to

    return str(resolve_device(device))


def _build(directory: Path, manifest: Manifest, vocabulary: Vocabulary, device: str) -> LanguageModel[Any]:
    if manifest.family == MixtureModel.family:
        parts: list[LanguageModel[Any]] = []
        while (part := directory / PARTS / str(len(parts))).is_dir():
            part_manifest = read_manifest(part)  # the parent's manifest vouches for the part's files
            parts.append(_build(part, part_manifest, load_tokenizer(part).vocabulary, device))
        return MixtureModel.load(directory, parts)
    if manifest.family not in FAMILIES:
        raise IncompatibleVersionError(
            f"{directory} holds a model of the family {manifest.family!r}; this version knows "
            f"{', '.join([*FAMILIES, MixtureModel.family])}: upgrade gramophone-lm"
        )
    module, name = FAMILIES[manifest.family]
    family = getattr(importlib.import_module(module), name)
    model: LanguageModel[Any] = family.load(directory, vocabulary, device=device)
    return model
