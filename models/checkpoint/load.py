"""Loading and writing of a checkpoint.

Loading verifies the hashes, rebuilds the model and replays its golden test. A family's module is
imported when a model of it is loaded, so a server of n-gram models and int8 networks needs no torch.
"""

import hashlib
import importlib
import itertools
import json
import logging
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from safetensors import SafetensorError

from models.arrays import to_numpy
from models.checkpoint.copies import Copies
from models.checkpoint.golden import golden_sequences, has_int8, replay_golden, write_golden
from models.checkpoint.manifest import (
    MANIFEST_FILE,
    SCHEMA_VERSION,
    Direction,
    Manifest,
    SpecialIds,
    file_entries,
    read_manifest,
    verify_files,
    write_manifest,
)
from models.checkpoint.precision import (
    BFLOAT16,
    FLOAT32,
    INT8,
    NEURAL_FAMILIES,
    PRETRAINED_FAMILY,
    QUANTISABLE_FAMILIES,
    Precision,
    check_precision,
    is_int8_recommended,
)
from models.errors import (
    CheckpointError,
    IncompatibleVersionError,
    InputError,
    ManifestError,
    RegistryError,
    require_package,
)
from models.files import read_config
from models.language_model import BOS, EOS, UNK, LanguageModel, State, Vocabulary
from models.misspellings import Misspellings
from models.neural.config import read_weights
from models.slot_model import with_slots
from models.slots import check_slots
from models.tensor_files import PackedWeightCache
from models.tokenizers import (
    LEXICON_FILE,
    MISSPELLINGS_FILE,
    SLOTS_FILE,
    SPM_FILE,
    SUBWORDS,
    TOKENIZER_FILE,
    CharacterTokenizer,
    ListedPieces,
    PieceTokenizer,
    Tokenizer,
    WordTokenizer,
)

S = TypeVar("S", bound=State)
PARTS_FOLDER = "parts"

_log = logging.getLogger(__name__)

NGRAM_FAMILY = "ngram"

FAMILIES = {
    NGRAM_FAMILY: ("models.ngram.model", "NGramModel"),
    PRETRAINED_FAMILY: ("models.pretrained.model", "PretrainedModel"),
    **dict.fromkeys(NEURAL_FAMILIES, ("models.neural.model", "NeuralModel")),
}
"""Module and class of each family, imported on demand."""

_INT8_NETWORK = ("models.neural.int8.model", "Int8Model")

COMPOSITES = {"mixture": ("models.mixture", "MixtureModel"), "cache": ("models.cache.model", "CacheModel")}
"""Families of models that have other models, stored under `parts/`."""

WeightCache: TypeAlias = Callable[[Path], PackedWeightCache]
"""Function from a network's folder to its cache of quantised weights."""


class StorableModel(LanguageModel[S], Protocol[S]):
    """Language model that can write itself to disk.

    Attributes:
        num_parameters: number of values learnt from data.
    """

    num_parameters: int

    def save(self, directory: Path) -> None:
        """Write config.json and the weights."""


class CheckpointDescription(NamedTuple):
    """Metadata of a checkpoint.

    Attributes:
        created: ISO 8601, UTC.
        metrics: held-out metrics, for metrics.json.
        provenance: recipe, seeds, library versions, …, for provenance.json.
        golden: encoded held-out texts for the golden test.
        card: MODEL_CARD.md and its pictures, by file name.
        direction: the order in which the model reads a text.
    """

    created: str
    metrics: Mapping[str, Any]
    provenance: Mapping[str, Any]
    golden: Sequence[Sequence[int]]
    card: Mapping[str, bytes]
    direction: Direction = "forward"


def write_checkpoint(
    directory: Path,
    model: StorableModel[Any],
    tokenizer: Tokenizer,
    description: CheckpointDescription,
    *,
    parts: Sequence[Path] = (),
) -> None:
    """Write a checkpoint into an empty folder, the manifest last.

    Args:
        directory: the folder.
        model: the model.
        tokenizer: the tokenizer that the model was trained with.
        description: metadata of the checkpoint.
        parts: complete checkpoints to embed: models of a mixture, in order of its weights, or of a cache model.

    Raises:
        RegistryError: the weights cannot be written (full disk).
    """
    for number, part in enumerate(parts):
        shutil.copytree(part, directory / PARTS_FOLDER / str(number))
    try:
        model.save(directory)
    except SafetensorError as error:  # safetensors wraps errors of the operating system
        raise RegistryError(f"cannot write the weights to {directory}: {error}") from None
    tokenizer.save(directory)
    sequences = golden_sequences(description.golden, len(model.vocabulary))
    write_golden(directory, model, sequences)
    for name, values in {"metrics": description.metrics, "provenance": description.provenance}.items():
        text = json.dumps(values, indent=1, sort_keys=True, allow_nan=False)
        (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    for name, content in description.card.items():
        (directory / name).write_bytes(content)
    for path in directory.iterdir():  # safetensors creates files that only the owner can read
        if path.is_file():
            shutil.copymode(directory / "metrics.json", path)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        reader_version=SCHEMA_VERSION,
        family=model.family,
        direction=description.direction,
        created=description.created,
        vocabulary_fingerprint=model.vocabulary.fingerprint,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=len(model.vocabulary),
        special_ids=SpecialIds(unk=UNK, bos=BOS, eos=EOS),
        parameters=model.num_parameters,
        normalised=model.normalised,
        normalisation_deviation=normalisation_deviation(model, sequences),
        files=file_entries(directory),
    )
    write_manifest(directory, manifest)


def normalisation_deviation(model: LanguageModel, sequences: Sequence[Sequence[int]]) -> float:
    """Compute the largest |Σ_w p(w|h) − 1| over the sequences' prefixes h."""
    worst = 0.0
    for sequence in sequences:
        state = model.initial_state(1)
        for token in sequence:
            total = np.exp(to_numpy(model.next_log_probs(state)), dtype=np.float64).sum()
            worst = max(worst, abs(float(total) - 1.0))
            state = model.advance(state, np.asarray([token]))
    return worst


class Checkpoint(NamedTuple):
    """Loaded version.

    Attributes:
        manifest: its manifest.
        model: the model.
        tokenizer: the model's tokenizer.
        metrics: published held-out metrics.
        path: folder of the version.
        precision: `int8` if one of its networks uses it, else `float32`.
    """

    manifest: Manifest
    model: LanguageModel
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
    members: bool = True,
) -> Checkpoint:
    """Load a version: verify hashes, build it, replay its golden test, which warms it up.

    Args:
        directory: the version's folder.
        device: `cpu`, `cuda`, `cuda:1`, … or `auto`: a CUDA device if any, but the CPU for n-gram models,
            which answer few contexts faster than a transfer takes. An n-gram model too
            large for a device's memory stays on the CPU, with a log message.
        precision: of networks: `float32`; `int8`, CPU only; `bfloat16`, pretrained models only; or `auto`: int8 on a
            CPU if measured at publishing with a small cost, bfloat16 for pretrained models on a CUDA
            device. Networks that do not support a precision stay in float32.
        shared: a folder of this host's processes that load the version, writable for no other user: the
            first process writes packed weights there, and all map them. Files of weights and n-grams
            are always mapped, and so shared; nothing is shared on a CUDA device.
        copies: where the version is copied before loading, so later changes of its folder do not affect
            the model; None loads from the folder itself.
        members: whether members of classes in training text are tokens.

    Raises:
        InputError: unknown device or precision, or int8 is impossible on the device or of the version.
        CheckpointError: a file, the format or a score differs from the published.
    """
    manifest = read_manifest(directory)
    copy = None if copies is None else copies.take(directory, manifest)
    folder = directory if copy is None else copy.path
    with ExitStack() as cleanup:
        if copy is None:
            verify_files(directory, manifest)
        else:
            cleanup.callback(copy.release)
        try:
            loaded = _load_verified(folder, directory, manifest, device, precision, shared)
        except CheckpointError as error:
            raise type(error)(str(error).replace(str(folder), str(directory))) from error
        weakref.finalize(loaded.model, cleanup.pop_all().close)
    if not (members and loaded.tokenizer.slots):
        return loaded
    # those of the training text
    model, tokenizer = with_slots(loaded.model, loaded.tokenizer, {})
    return loaded._replace(model=model, tokenizer=tokenizer)


def _load_verified(
    directory: Path, location: Path, manifest: Manifest, device: str, precision: str, shared: Path | None
) -> Checkpoint:
    """Load a version from verified files.

    `location` is its published folder if `directory` is a copy.
    """
    tokenizer = load_tokenizer(directory)
    if (
        tokenizer.fingerprint != manifest.tokenizer_fingerprint
        or tokenizer.vocabulary.fingerprint != manifest.vocabulary_fingerprint
    ):
        raise ManifestError(f"{directory}: the tokenizer is not the one in the manifest")
    device = _resolve_device_name(device, directory, manifest)
    wanted = check_precision(precision)
    try:
        metrics = _read_metrics(directory / "metrics.json")
        families = _families(directory, manifest)
        used: Precision = FLOAT32
        if families & QUANTISABLE_FAMILIES and _uses_int8(directory, location, metrics, device, wanted):
            used = INT8
        elif PRETRAINED_FAMILY in families and (wanted == BFLOAT16 or (wanted == "auto" and device != "cpu")):
            used = BFLOAT16
        int8_cache = partial(_weight_cache, shared, directory, manifest) if used == INT8 else None
        model = _build(directory, manifest, tokenizer.vocabulary, device, int8_cache, used)
        replay_golden(directory, model, device=device, precision=used)
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:  # although the hashes match
        raise ManifestError(
            f"{directory}: cannot be rebuilt as a model of the family {manifest.family}: {error}"
        ) from error
    return Checkpoint(manifest, model, tokenizer, metrics, location, used)


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load the tokenizer that `save` wrote into a folder.

    Raises:
        ManifestError: a file is missing or was not written by `save`.
    """
    tokenizer = _read_tokenizer(directory)
    path = directory / LEXICON_FILE
    if path.exists():
        try:
            tokenizer.lexicon = tuple(path.read_text(encoding="utf-8").split())
        except (OSError, ValueError) as error:
            raise ManifestError(f"{path}: not a list of words: {error!s:.300}") from None
    path = directory / MISSPELLINGS_FILE
    if path.exists():
        try:
            tokenizer.misspellings = Misspellings.read(path.read_text(encoding="utf-8").splitlines())
        except (OSError, ValueError) as error:
            raise ManifestError(f"{path}: not misspellings with their words: {error!s:.300}") from None
    path = directory / SLOTS_FILE
    if path.exists():
        try:
            tokenizer.slots = check_slots(read_config(path), known=tokenizer.classes, param="slots")
        except (TypeError, AttributeError, InputError) as error:
            raise ManifestError(f"{path}: not members of classes: {error!s:.300}") from None
    return tokenizer


def _read_tokenizer(directory: Path) -> Tokenizer:
    path = directory / TOKENIZER_FILE
    config = read_config(path)
    try:
        kind = config.pop("kind")
        if kind == SUBWORDS:
            require_package("transformers", "the tokenizer of a pretrained model")
            from models.pretrained.tokenizer import PRETRAINED_FOLDER, PretrainedTokenizer

            return PretrainedTokenizer(directory / PRETRAINED_FOLDER)
        if kind == PieceTokenizer.kind:
            path = directory / SPM_FILE
            model = path.read_bytes()
            if "tokens" not in config:
                form, classes = config.get("normalise", "none"), config.get("classes", ())
                return PieceTokenizer(model, normalise=form, classes=classes)
        vocabulary = Vocabulary(map(_checked_token, config.pop("tokens")))
        if kind == PieceTokenizer.kind:
            return ListedPieces(model, vocabulary)
        if kind == CharacterTokenizer.kind:
            return CharacterTokenizer(vocabulary, normalise=config.get("normalise", "none"))
        if kind == WordTokenizer.kind:
            return WordTokenizer(vocabulary, **{"unicode_spaces": True} | config)
    except (OSError, ValueError, KeyError, TypeError, InputError, ManifestError) as error:
        raise ManifestError(f"{path}: not a tokenizer: {error!s:.300}") from None
    raise ManifestError(f"{path}: unknown tokenizer kind {kind!r}")


def _checked_token(token: Any) -> str:
    """Return a file's token, checked to be text."""
    if not isinstance(token, str):
        raise TypeError(f"a token is {token!r:.40}, not text")
    token.encode()  # raises ValueError for a lone surrogate
    return token


def _read_metrics(path: Path) -> dict[str, Any]:
    metrics: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(metrics, dict) or not isinstance(metrics.get(INT8, {}), dict):
        raise ManifestError(f"{path} is not a JSON object of metrics")
    try:
        json.dumps(metrics, allow_nan=False, ensure_ascii=False).encode()  # as the service's replies require
    except ValueError as error:
        raise ManifestError(f"{path} has a value that JSON cannot represent: {error}") from None
    return metrics


def _uses_int8(
    directory: Path, location: Path, metrics: dict[str, Any], device: str, precision: Precision
) -> bool:
    """True if the networks should compute in int8."""
    if precision in {FLOAT32, BFLOAT16} or (
        precision == "auto" and (device != "cpu" or not is_int8_recommended(metrics))
    ):
        return False
    if device != "cpu":
        raise InputError.of("precision", f"is int8, which requires the CPU; the device is {device}")
    if has_int8(directory):
        return True
    problems = metrics.get(INT8, {}).get("problems") or ["it was published without int8 scores"]
    _log.warning("%s stays in float32: %s", location, "; ".join(problems))
    return False


def _resolve_device_name(device: str, directory: Path, manifest: Manifest) -> str:
    """Resolve a device to its own name, without torch for n-gram models."""
    if device == "cpu" or (
        device == "auto" and (find_spec("torch") is None or _families(directory, manifest) == {NGRAM_FAMILY})
    ):
        return "cpu"
    require_package("torch", f"device {device}", param="device")
    from models.neural.network import resolve_device  # imports torch

    return str(resolve_device(device))


def _families(directory: Path, manifest: Manifest) -> set[str]:
    """Return the families of a model's parts, or its own if it has none."""
    if manifest.family not in COMPOSITES:
        return {manifest.family}
    return set().union(*(_families(part, read_manifest(part)) for part in _part_folders(directory)))


def _part_folders(directory: Path) -> Iterator[Path]:
    """Yield the folders of the parts of a mixture or cache model, in order."""
    folders = (directory / PARTS_FOLDER / str(number) for number in itertools.count())
    return itertools.takewhile(Path.is_dir, folders)


def _build(
    directory: Path,
    manifest: Manifest,
    vocabulary: Vocabulary,
    device: str,
    int8_cache: WeightCache | None,
    precision: Precision,
) -> LanguageModel:
    """Build a model, networks in int8 if supported and `int8_cache` is not None."""
    if manifest.family in COMPOSITES:
        parts = []
        for part in _part_folders(directory):  # the parent's manifest has the hashes of the parts' files
            inner = read_manifest(part)
            known = inner.vocabulary_fingerprint == vocabulary.fingerprint
            its_own = vocabulary if known else load_tokenizer(part).vocabulary  # shared, to save memory
            parts.append(_build(part, inner, its_own, device, int8_cache, precision))
        composite: LanguageModel = _import_class(*COMPOSITES[manifest.family]).load(directory, parts)
        return composite
    if manifest.family not in FAMILIES:
        raise IncompatibleVersionError(
            f"{directory} has a model of the family {manifest.family!r}; this version supports "
            f"{', '.join([*FAMILIES, *COMPOSITES])}: upgrade gramophone-lm"
        )
    if int8_cache is not None and manifest.family in NEURAL_FAMILIES:
        weights = read_weights(directory, vocab_size=len(vocabulary))
        if weights.config.int8_problem is None:
            network: LanguageModel = _import_class(*_INT8_NETWORK)(
                weights, vocabulary, weight_cache=int8_cache(directory)
            )
            return network
    options: dict[str, Any] = {"device": device}
    if manifest.family in NEURAL_FAMILIES:
        require_package("torch", f"float32 for {manifest.family} models", param="precision")
    if manifest.family == PRETRAINED_FAMILY:
        require_package("transformers", "a pretrained model")
        options |= {
            "bfloat16": precision == BFLOAT16,
            "int8_weights": int8_cache and int8_cache(directory),
        }
    loaded = _import_class(*FAMILIES[manifest.family]).load(directory, vocabulary, **options)
    if manifest.family == NGRAM_FAMILY and device != "cpu":
        from models.ngram.cuda.model import move_if_it_fits  # imports torch

        loaded = move_if_it_fits(loaded, device)
    model: LanguageModel = loaded
    return model


def _weight_cache(shared: Path | None, root: Path, manifest: Manifest, directory: Path) -> PackedWeightCache:
    """Create the cache of weights packed from a folder's verified files.

    Equal files have the same cache, alone or as part of any model.
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
    return getattr(importlib.import_module(module), name)
