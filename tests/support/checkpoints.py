"""Minimal directory that the registry accepts as a checkpoint."""

from pathlib import Path

from models.checkpoint.manifest import Manifest, SpecialIds, file_entries, write_manifest


def damage(version, name: str = "config.json") -> None:
    """Append a space to a read-only file of a published version."""
    path = version.path / name
    path.chmod(0o644)
    with path.open("a") as file:
        file.write(" ")


def write_minimal(directory: Path, content: bytes = b"weights", **fields) -> None:
    """Write a manifest and one file."""
    (directory / "weights.bin").write_bytes(content)
    manifest = Manifest(
        **{
            "schema_version": 1,
            "reader_version": 1,
            "family": "ngram",
            "created": "2026-01-01T00:00:00+00:00",
            "vocabulary_fingerprint": "0" * 64,
            "tokenizer_fingerprint": "0" * 64,
            "vocab_size": 10,
            "special_ids": SpecialIds(unk=0, bos=1, eos=2),
            "parameters": 1,
            "normalised": True,
            "normalisation_deviation": 0.0,
            "files": file_entries(directory),
            **fields,
        }
    )
    write_manifest(directory, manifest)
