"""GET /v1/models/{address}/files."""

from collections.abc import Mapping
from dataclasses import dataclass

from models.checkpoint.manifest import FileEntry


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A published file: where it lies in its version, its size, and its SHA-256 in hex."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelFileList:
    """The files of a version that are for people, sorted by name."""

    object: str
    model: str
    data: list[ModelFile]


def model_files(address: str, files: Mapping[str, FileEntry]) -> ModelFileList:
    """The files as they go over the wire."""
    told = [ModelFile(name, entry.bytes, entry.sha256) for name, entry in sorted(files.items())]
    return ModelFileList("list", address, told)
