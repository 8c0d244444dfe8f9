"""Writing of a complete checkpoint into an empty folder, the manifest last."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from safetensors import SafetensorError

from models.arrays import to_numpy
from models.checkpoint.golden import golden_sequences, write_golden
from models.checkpoint.manifest import (
    SCHEMA_VERSION,
    Direction,
    Manifest,
    SpecialIds,
    file_entries,
    write_manifest,
)
from models.errors import RegistryError
from models.language_model import LanguageModel, State
from models.tokenizers import Tokenizer
from models.vocabulary import BOS, EOS, UNK

S = TypeVar("S", bound=State)
PARTS_FOLDER = "parts"


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


def normalisation_deviation(model: LanguageModel[Any], sequences: Sequence[Sequence[int]]) -> float:
    """Compute the largest |Σ_w p(w|h) − 1| over the sequences' prefixes h."""
    worst = 0.0
    for sequence in sequences:
        state = model.initial_state(1)
        for token in sequence:
            total = np.exp(to_numpy(model.next_log_probs(state)), dtype=np.float64).sum()
            worst = max(worst, abs(float(total) - 1.0))
            state = model.advance(state, np.asarray([token]))
    return worst
