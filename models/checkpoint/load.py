"""Loading of a checkpoint: verify its hashes, rebuild the model, replay its golden test.

Model classes are imported when a model of their family is loaded, so an n-gram server needs no
torch.
"""

import hashlib
import importlib
import itertools
import json
import logging
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.copies import Copies
from models.checkpoint.golden import has_int8, replay_golden
from models.checkpoint.manifest import MANIFEST_FILE, Manifest, read_manifest, verify_files
from models.checkpoint.precision import (
    CACHE_FAMILY,
    FLOAT32,
    INT8,
    NEURAL_FAMILIES,
    Precision,
    check_precision,
    is_int8_recommended,
    to_int8,
)
from models.checkpoint.write import PARTS_FOLDER
from models.errors import CheckpointError, IncompatibleVersionError, InvalidInputError, ManifestError
from models.language_model import LanguageModel
from models.mixture import MixtureModel
from models.tensor_files import PackedWeightCache
from models.tokenizers import Tokenizer, load_tokenizer
from models.vocabulary import Vocabulary

_log = logging.getLogger(__name__)

NGRAM_FAMILY = "ngram"

FAMILIES = {
    NGRAM_FAMILY: ("models.ngram.model", "NGramModel"),
    **dict.fromkeys(NEURAL_FAMILIES, ("models.neural.model", "NeuralModel")),
}
"""Where each family's class is; imported when one is loaded, so an n-gram server needs no torch."""

COMPOSITES = {
    MixtureModel.family: ("models.mixture", "MixtureModel"),
    CACHE_FAMILY: ("models.cache.model", "CacheModel"),
}
"""Families whose models are made of others, which lie under `parts/`."""


class Checkpoint(NamedTuple):
    """A loaded version.

    Attributes:
        manifest: what it says it is.
        model: ready to answer.
        tokenizer: the one that belongs to it.
        metrics: held-out figures, as published.
        path: its directory.
        precision: `int8` if a network in it computes in integers, else `float32`.
    """

    manifest: Manifest
    model: LanguageModel[Any]
    tokenizer: Tokenizer
    metrics: dict[str, Any]
    path: Path
    precision: Precision = FLOAT32


def load_checkpoint(
    directory: Path,
    *,
    device: str = "cpu",
    precision: str = "auto",
    shared: Path | None = None,
    copies: Copies | None = None,
) -> Checkpoint:
    """Load a version: hashes first, then the model, then its golden test, which warms it up.

    Args:
        directory: the version's directory.
        device: `cpu`, `cuda`, `cuda:1`, … or `auto`: a CUDA device if there is one, and the CPU for an n-gram
            model, which answers a few contexts sooner than a device can be told of them. An n-gram model
            that a device has no room for is left on the CPU, with a line in the log.
        precision: of networks: `float32`; `int8`, on a CPU only; or `auto`: int8 on a CPU if it was measured at
            publishing and costs little. A network of a kind that int8 cannot compute stays in float32.
        shared: a folder that the processes of this host which load the version have in common, and nobody else
            may write to: packed weights are laid there by whoever comes first, and mapped by all. Files of
            weights and n-grams are mapped, hence shared, in any case; on a CUDA device nothing is.
        copies: where the version is copied to and loaded from, so that nothing that happens to its directory
            later changes or ends what is loaded; None loads from the directory itself.

    Raises:
        InvalidInputError: there is no such device or precision, or int8 does not go with the device or the version.
        CheckpointError: a byte, the format or an answer is not what was published.
    """
    manifest = read_manifest(directory)
    copy = None if copies is None else copies.take(directory, manifest)
    if copy is None:
        verify_files(directory, manifest)
        return _load_verified(directory, directory, manifest, device, precision, shared)
    try:
        loaded = _load_verified(copy.path, directory, manifest, device, precision, shared)
    except CheckpointError as error:
        copy.release()
        raise type(error)(str(error).replace(str(copy.path), str(directory))) from error
    except BaseException:
        copy.release()
        raise
    weakref.finalize(loaded.model, copy.release)
    return loaded


def _load_verified(
    directory: Path, location: Path, manifest: Manifest, device: str, precision: str, shared: Path | None
) -> Checkpoint:
    """A version from verified files in a directory, which is its place or a copy."""
    tokenizer = load_tokenizer(directory)
    if (
        tokenizer.fingerprint != manifest.tokenizer_fingerprint
        or tokenizer.vocabulary.fingerprint != manifest.vocabulary_fingerprint
    ):
        raise ManifestError(f"{directory}: the tokenizer is not the one that the manifest names")
    device = _resolve_device_name(device, directory, manifest)
    wanted = check_precision(precision)
    try:
        metrics = _read_metrics(directory / "metrics.json")
        weight_cache = partial(_shared_weight_cache, shared if device == "cpu" else None, directory, manifest)
        model = _build(directory, manifest, tokenizer.vocabulary, device, weight_cache)
        used: Precision = FLOAT32
        if _families(directory, manifest) & {*NEURAL_FAMILIES} and _uses_int8(
            directory, location, metrics, device, wanted
        ):
            model, used = to_int8(model), INT8
        replay_golden(directory, model, device=device, precision=used)
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
    return Checkpoint(manifest, model, tokenizer, metrics, location, used)


def _read_metrics(path: Path) -> dict[str, Any]:
    metrics: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(metrics, dict) or not isinstance(metrics.get(INT8, {}), dict):
        raise ManifestError(f"{path} is not an object of figures")
    try:
        json.dumps(metrics, allow_nan=False, ensure_ascii=False).encode()  # as the service tells them
    except ValueError as error:
        raise ManifestError(f"{path} says what JSON cannot: {error}") from None
    return metrics


def _uses_int8(
    directory: Path, location: Path, metrics: dict[str, Any], device: str, precision: Precision
) -> bool:
    """Return whether the networks are to compute in integers."""
    if precision == FLOAT32 or (
        precision == "auto" and (device != "cpu" or not is_int8_recommended(metrics))
    ):
        return False
    if device != "cpu":
        raise InvalidInputError(
            f"precision is int8, which is for the CPU; the device is {device}", parameter="precision"
        )
    if has_int8(directory):
        return True
    problems = metrics.get(INT8, {}).get("problems") or ["it was published without scores in int8"]
    _log.warning("%s stays in float32: %s", location, "; ".join(problems))
    return False


def _resolve_device_name(device: str, directory: Path, manifest: Manifest) -> str:
    """The device by its own name; torch, not needed by an n-gram server, is imported only where needed."""
    if device == "cpu" or (device == "auto" and _families(directory, manifest) == {NGRAM_FAMILY}):
        return "cpu"
    from models.neural.network import resolve_device  # brings in torch

    return str(resolve_device(device))


def _families(directory: Path, manifest: Manifest) -> set[str]:
    """The families of the model and of everything in it that is not made of others."""
    if manifest.family not in COMPOSITES:
        return {manifest.family}
    return set().union(*(_families(part, read_manifest(part)) for part in _part_folders(directory)))


def _part_folders(directory: Path) -> Iterator[Path]:
    """Parts of a mixture or a cache, in order."""
    folders = (directory / PARTS_FOLDER / str(number) for number in itertools.count())
    return itertools.takewhile(Path.is_dir, folders)


def _build(
    directory: Path,
    manifest: Manifest,
    vocabulary: Vocabulary,
    device: str,
    weight_cache: Callable[[Path], PackedWeightCache],
) -> LanguageModel[Any]:
    if manifest.family in COMPOSITES:
        parts = []
        for part in _part_folders(directory):  # the parent's manifest vouches for the parts' files
            inner = read_manifest(part)
            known = inner.vocabulary_fingerprint == vocabulary.fingerprint
            its_own = vocabulary if known else load_tokenizer(part).vocabulary  # every word is an object
            parts.append(_build(part, inner, its_own, device, weight_cache))
        composite: LanguageModel[Any] = _import_class(*COMPOSITES[manifest.family]).load(directory, parts)
        return composite
    if manifest.family not in FAMILIES:
        raise IncompatibleVersionError(
            f"{directory} holds a model of the family {manifest.family!r}; this version knows "
            f"{', '.join([*FAMILIES, *COMPOSITES])}: upgrade gramophone-lm"
        )
    packing = {"weight_cache": weight_cache(directory)} if manifest.family in NEURAL_FAMILIES else {}
    loaded = _import_class(*FAMILIES[manifest.family]).load(directory, vocabulary, device=device, **packing)
    if manifest.family == NGRAM_FAMILY and device != "cpu":
        from models.ngram.cuda.model import move_if_it_fits  # brings in torch

        loaded = move_if_it_fits(loaded, device)
    model: LanguageModel[Any] = loaded
    return model


def _shared_weight_cache(
    shared: Path | None, root: Path, manifest: Manifest, directory: Path
) -> PackedWeightCache:
    """The weight cache for what is computed from the files of a directory, whose hashes have been verified.

    Alone or as a part of several models, the same files have the same cache.
    """
    if shared is None:
        return PackedWeightCache()
    hashes = {
        (root / name).relative_to(directory).as_posix(): entry.sha256
        for name, entry in manifest.files.items()
        if (root / name).is_relative_to(directory) and (root / name).name != MANIFEST_FILE
    }
    return PackedWeightCache(shared, hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest())


def _import_class(module: str, name: str) -> Any:
    """A class by name, imported now: what a server does not load it does not import."""
    return getattr(importlib.import_module(module), name)
