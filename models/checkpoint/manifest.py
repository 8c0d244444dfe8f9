"""`manifest.json`: what a checkpoint is, and the hash of every file in it.

The manifest is written last and vouches for all else; it vouches for itself by a checksum
over its own canonical bytes, so damage to any byte of any file is seen.
"""

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.errors import CheckpointError, IncompatibleVersionError, IntegrityError, ManifestError

MANIFEST_FILE = "manifest.json"
SCHEMA_VERSION = 2
"""What this code writes, and the newest it reads."""

_HASH_CHUNK_BYTES = 1 << 20
Direction = Literal["forward", "backward"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(BaseModel):
    """One file's hash and size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Sha256
    bytes: int = Field(ge=0)


class SpecialIds(BaseModel):
    """Ids of the control tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unk: int
    bos: int
    eos: int


class Manifest(BaseModel):
    """A checkpoint's description.

    `reader_version` is the smallest `SCHEMA_VERSION` that can read it. `created` is ISO 8601,
    UTC. `direction` says in which order a text's tokens are read: `backward` is from its end to
    its start. `normalisation_deviation` is the largest |Σp − 1| measured when it was written.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int
    reader_version: int
    family: str
    direction: Direction = "forward"
    created: str
    vocabulary_fingerprint: Sha256
    tokenizer_fingerprint: Sha256
    vocab_size: int = Field(ge=3)
    special_ids: SpecialIds
    parameters: int = Field(ge=0)
    normalised: bool
    normalisation_deviation: float = Field(ge=0)
    files: dict[str, FileEntry]


def file_entries(directory: Path) -> dict[str, FileEntry]:
    """Hash and size of every file under a directory, the manifest at its top aside."""
    return {
        path.relative_to(directory).as_posix(): FileEntry(sha256=sha256_of(path), bytes=path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path != directory / MANIFEST_FILE
    }


def sha256_of(path: Path) -> str:
    """A file's SHA-256 in hex, read in bounded chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json`; the last file of a checkpoint to be written."""
    fields = manifest.model_dump(mode="json")
    fields["checksum"] = _checksum(fields)
    (directory / MANIFEST_FILE).write_bytes(_canonical(fields))


def read_manifest(directory: Path) -> Manifest:
    """Read and check `manifest.json`; the files it lists are not touched.

    Raises:
        ManifestError: it is missing, unreadable, or breaks the schema.
        IntegrityError: its bytes are not those that were written.
        IncompatibleVersionError: it needs a newer reader.
    """
    path = directory / MANIFEST_FILE
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ManifestError(f"{path} is missing: not a checkpoint, or one that was never finished") from None
    except OSError as error:
        raise ManifestError(f"{path} is not a manifest: {error}") from None
    return parse_manifest(raw, path)


def parse_manifest(raw: bytes, place: object) -> Manifest:
    """Check the bytes of a `manifest.json`.

    Args:
        raw: its bytes.
        place: what messages call it.

    Raises:
        ManifestError: they break the schema.
        IntegrityError: they are not those that were written.
        IncompatibleVersionError: they need a newer reader.
    """
    try:
        fields: Any = json.loads(raw)
        reader_version = int(fields["reader_version"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ManifestError(f"{place} is not a manifest: {error}") from None
    if reader_version > SCHEMA_VERSION:
        raise _too_new(place, reader_version)
    try:
        return _checked(raw, fields, place)
    except CheckpointError:
        written = fields.get("schema_version")
        if isinstance(written, int) and written > SCHEMA_VERSION:  # what looks wrong may be new
            raise _too_new(place, written) from None
        raise


def _too_new(place: object, version: int) -> IncompatibleVersionError:
    return IncompatibleVersionError(
        f"{place} needs a newer Gramophone: it is of version {version}, this one reads up to {SCHEMA_VERSION}: "
        "upgrade gramophone-lm"
    )


def _checked(raw: bytes, fields: dict[str, Any], place: object) -> Manifest:
    if not _is_intact(raw, fields):
        raise IntegrityError(f"{place} was changed after it was written: its checksum does not match")
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ManifestError(f"{place}: field {field!r:.200}: {first['msg']}") from None
    for name in manifest.files:
        if not _is_inside(name):
            raise ManifestError(f"{place} lists a file outside the checkpoint: {name!r}")
    return manifest


def _is_intact(raw: bytes, fields: dict[str, Any]) -> bool:
    """Whether fields, whose checksum is taken out, are those that were written, in the same spelling."""
    checksum = fields.pop("checksum", None)
    try:
        return checksum == _checksum(fields) and raw == _canonical({**fields, "checksum": checksum})
    except RecursionError:  # what is nested this deeply can be read, but was never written
        return False


def _is_inside(name: str) -> bool:
    """Whether it is a plain relative path to another file than the manifest, in its only spelling."""
    path = PurePosixPath(name)  # absolute with two slashes as well as with one
    is_plain = name.isprintable() and path.as_posix() == name and not path.is_absolute()
    return is_plain and ".." not in path.parts and name not in {".", MANIFEST_FILE}


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Compare every listed file's size and hash with the manifest.

    Raises:
        IntegrityError: a file is missing, cut, or changed; the message names it.
    """
    for name, entry in manifest.files.items():
        path = directory / name
        try:
            size = path.stat().st_size
            if size != entry.bytes:
                raise IntegrityError(f"{path} has {size} bytes, {entry.bytes} were published")
            if sha256_of(path) != entry.sha256:
                raise IntegrityError(f"{path} was changed after it was published: its SHA-256 does not match")
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read: {error.strerror}") from None


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(fields)).hexdigest()


def _canonical(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()
