"""Manifests, their hashes, and writing to a read-only place."""

import json

import numpy as np
import pytest

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.manifest import MANIFEST_FILE, read_manifest, verify_files
from models.checkpoint.registry import LocalRegistry
from models.errors import (
    CheckpointError,
    IncompatibleVersionError,
    IntegrityError,
    ManifestError,
    RegistryError,
)
from models.ngram.automaton import Automaton
from models.tokenizers import WordTokenizer
from tests.support.checkpoints import write_minimal
from tests.support.fake_models import FakeModel, fake_vocabulary


def test_written_manifest_is_read_and_verifies(tmp_path):
    write_minimal(tmp_path)
    manifest = read_manifest(tmp_path)
    verify_files(tmp_path, manifest)
    assert manifest.family == "ngram"
    assert manifest.files["weights.bin"].bytes == 7


def test_a_change_to_any_byte_of_the_manifest_is_seen(tmp_path):
    write_minimal(tmp_path)
    path = tmp_path / MANIFEST_FILE
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(CheckpointError):
            read_manifest(tmp_path)


def test_a_manifest_cut_anywhere_is_seen(tmp_path):
    write_minimal(tmp_path)
    path = tmp_path / MANIFEST_FILE
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointError):
            read_manifest(tmp_path)


def test_a_file_that_is_missing_cut_or_changed_is_named(tmp_path):
    write_minimal(tmp_path)
    manifest = read_manifest(tmp_path)
    weights = tmp_path / "weights.bin"
    for damage in (b"Weights", b"weight", b""):
        weights.write_bytes(damage)
        with pytest.raises(IntegrityError, match=r"weights\.bin"):
            verify_files(tmp_path, manifest)
    weights.unlink()
    with pytest.raises(IntegrityError, match=r"weights\.bin cannot be read"):
        verify_files(tmp_path, manifest)


@pytest.mark.parametrize("changes", [{"reader_version": 99}, {"schema_version": 99, "novelty": 1}])
def test_a_checkpoint_of_a_newer_version_says_what_to_do(tmp_path, changes):
    write_minimal(tmp_path)
    fields = json.loads((tmp_path / MANIFEST_FILE).read_bytes())
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(fields | changes))
    with pytest.raises(
        IncompatibleVersionError,
        match="newer Gramophone: its version is 99, this one reads up to 2: upgrade",
    ):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"reader_version": 1e999}', '{"reader_version": null}', "1"]
)
def test_json_that_is_no_manifest_is_refused(tmp_path, text):
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(ManifestError, match="is not a manifest"):
        read_manifest(tmp_path)


def test_a_missing_manifest_means_no_checkpoint(tmp_path):
    with pytest.raises(ManifestError, match="an unfinished one"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "//etc/passwd", "a/../../b", "a/./b", "a\0b", "", "manifest.json"]
)
def test_a_manifest_cannot_list_files_outside_its_directory(tmp_path, name):
    entry = {"sha256": "0" * 64, "bytes": 0}
    write_minimal(tmp_path, files={name: entry})
    with pytest.raises(ManifestError, match="outside the checkpoint"):
        read_manifest(tmp_path)


def test_a_field_of_the_wrong_kind_is_named_even_if_the_checksum_is_right(tmp_path):
    write_minimal(tmp_path, vocab_size=10)
    from models.checkpoint.manifest import _checksum, format_json

    fields = json.loads((tmp_path / MANIFEST_FILE).read_bytes())
    fields.pop("checksum")
    fields["vocab_size"] = "many"
    (tmp_path / MANIFEST_FILE).write_bytes(format_json({**fields, "checksum": _checksum(fields)}))
    with pytest.raises(ManifestError, match="'vocab_size'"):
        read_manifest(tmp_path)


class OntoAFullDisk(FakeModel):
    """Model that saves through safetensors to a file that cannot be created."""

    def save(self, directory):
        arrays = {name: np.zeros(1, dtype=np.int32) for name in Automaton._fields}
        Automaton(**arrays).save(directory / "missing" / "ngram.bin")


def test_weights_that_cannot_be_written_publish_nothing(tmp_path):
    registry = LocalRegistry(tmp_path, create=True)
    tokenizer = WordTokenizer(fake_vocabulary())
    model = OntoAFullDisk(tokenizer.vocabulary)
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3]], {})
    with pytest.raises(RegistryError, match="cannot write"):
        registry.publish("m", lambda folder: write_checkpoint(folder, model, tokenizer, description))
    assert registry.models() == []
    assert list((tmp_path / "m" / "versions").iterdir()) == []
