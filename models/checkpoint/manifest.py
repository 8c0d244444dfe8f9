"""Manifest of a checkpoint, and the names, numbers, aliases and default model of a registry.

`manifest.json` says what a checkpoint is and lists the hash of every other file. It is written
last, and protects itself by a checksum over its own canonical bytes, so damage to any byte of any
file is detected.

The default model answers requests that name none. A registry with several models stores its name in
`.default`, before a second name is published or by `gramophone models default`: so a new name never
changes what is served, and a service writes nothing.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.errors import (
    CheckpointError,
    IncompatibleVersionError,
    IntegrityError,
    InvalidInputError,
    ManifestError,
    ModelNotFoundError,
)

MANIFEST_FILE = "manifest.json"
SCHEMA_VERSION = 2
"""What this code writes, and the newest it reads."""

Direction = Literal["forward", "backward"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Strict):
    """One file's hash and size."""

    sha256: Sha256
    bytes: int = Field(ge=0)


class SpecialIds(_Strict):
    """Ids of the control tokens."""

    unk: int
    bos: int
    eos: int


class Manifest(_Strict):
    """A checkpoint's description.

    `reader_version` is the smallest `SCHEMA_VERSION` that can read it. `created` is ISO 8601,
    UTC. `direction` says in which order a text's tokens are read: `backward` is from its end to
    its start. `normalisation_deviation` is the largest |Σp − 1| measured when it was written.
    """

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
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def parse_manifest(raw: bytes, location: object) -> Manifest:
    """Check the bytes of a `manifest.json`.

    Args:
        raw: its bytes.
        location: what messages call it.

    Raises:
        ManifestError: they break the schema.
        IntegrityError: they are not those that were written.
        IncompatibleVersionError: they need a newer reader.
    """
    try:
        fields: Any = json.loads(raw)
        reader_version = int(fields["reader_version"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ManifestError(f"{location} is not a manifest: {error}") from None
    if reader_version > SCHEMA_VERSION:
        raise _too_new(location, reader_version)
    try:
        return _checked(raw, fields, location)
    except CheckpointError:
        written = fields.get("schema_version")
        if isinstance(written, int) and written > SCHEMA_VERSION:  # what looks wrong may be new
            raise _too_new(location, written) from None
        raise


def _too_new(location: object, version: int) -> IncompatibleVersionError:
    return IncompatibleVersionError(
        f"{location} needs a newer Gramophone: it is of version {version}, this one reads up to {SCHEMA_VERSION}: "
        "upgrade gramophone-lm"
    )


def _checked(raw: bytes, fields: dict[str, Any], location: object) -> Manifest:
    if not _is_intact(raw, fields):
        raise IntegrityError(f"{location} was changed after it was written: its checksum does not match")
    try:
        manifest = Manifest.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ManifestError(f"{location}: field {field!r:.200}: {first['msg']}") from None
    for name in manifest.files:
        if not _is_inside(name):
            raise ManifestError(f"{location} lists a file outside the checkpoint: {name!r}")
    return manifest


def _is_intact(raw: bytes, fields: dict[str, Any]) -> bool:
    """Return whether fields, whose checksum is taken out, are those that were written, in the same spelling."""
    checksum = fields.pop("checksum", None)
    try:
        return checksum == _checksum(fields) and raw == _canonical({**fields, "checksum": checksum})
    except RecursionError:  # what is nested this deeply can be read, but was never written
        return False


def _is_inside(name: str) -> bool:
    """Return whether it is a plain relative path to another file than the manifest, in its only spelling."""
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


CHAMPION = "champion"
ALIASES_FILE = "aliases.json"
MAX_NAME_LENGTH = 100
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Version(NamedTuple):
    """One published version.

    Attributes:
        name: of the model.
        number: of the version.
        path: its folder: in a local registry where it lies, else where `Registry.fetch` lays it.
    """

    name: str
    number: int
    path: Path

    @property
    def address(self) -> str:
        """`name@number`."""
        return f"{self.name}@{self.number}"


def is_name(name: str) -> bool:
    """Return whether it can be the name of a model or an alias."""
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def is_version_number(text: str) -> bool:
    """Return whether it is a version number as it is spelled in paths and addresses."""
    return _NUMBER.fullmatch(text) is not None


def check_name(name: str, *, parameter: str = "name") -> None:
    """Refuse what cannot be the name of a model or an alias.

    Raises:
        InvalidInputError: it has other characters than letters, digits, `.`, `_`, `-`, or is too long.
    """
    if not is_name(name):
        raise InvalidInputError(
            f"{parameter} is {name[:120]!r}; it must start with a letter or digit, go on with letters, digits, "
            f"'.', '_' or '-', and have at most {MAX_NAME_LENGTH} characters",
            parameter=parameter,
        )


def check_unaliased(version: Version, aliases: dict[str, int]) -> None:
    """Refuse to delete a version that is in use.

    Raises:
        InvalidInputError: an alias points to it.
    """
    pointing = [alias for alias, target in aliases.items() if target == version.number]
    if pointing:
        raise InvalidInputError(
            f"{version.address} is {' and '.join(pointing)}: point the alias elsewhere first",
            parameter="version",
        )


def format_aliases(aliases: dict[str, int]) -> bytes:
    """Write `aliases.json`."""
    return (json.dumps(aliases, indent=1, sort_keys=True) + "\n").encode()


def unknown_alias_error(name: str, alias: str, aliases: Iterable[str]) -> ModelNotFoundError:
    """The error that lists the aliases there are."""
    known = ", ".join(sorted(aliases)) or "none"
    return ModelNotFoundError(
        f"model {name!r} has no alias {alias[:MAX_NAME_LENGTH]!r}; its aliases: {known}"
    )


def version_address(path: Path) -> str:
    """The `name@version` of a version's directory."""
    return f"{path.parents[1].name}@{path.name}"


DEFAULT_FILE = ".default"
PREFERRED_DEFAULT = "mixture"
_DEFAULT_HINT = "choose one with `gramophone models default NAME` or GRAMOPHONE_DEFAULT_MODEL"


class DefaultChoice(NamedTuple):
    """The default among some models.

    Attributes:
        name: its name.
        reason: why it is that one.
        is_guess: whether nobody has said so, and others are there.
    """

    name: str
    reason: str
    is_guess: bool = False


def choose_default(names: Sequence[str], remembered: str | None) -> DefaultChoice:
    """The default among names, of which there is one at least.

    Args:
        names: of models, sorted.
        remembered: what the registry remembers.
    """
    if remembered is not None and remembered in names:
        return DefaultChoice(remembered, "it is set as the registry's default")
    if len(names) == 1:
        return DefaultChoice(names[0], "it is the only model")
    name, reason = names[0], "this is the first name in the alphabet"
    if PREFERRED_DEFAULT in names:
        name, reason = PREFERRED_DEFAULT, "a model of this name is preferred"
    missing = (
        "no default was chosen" if remembered is None else f"the chosen default {remembered!r} is not here"
    )
    return DefaultChoice(name, f"{missing}, and {reason}: {_DEFAULT_HINT}", is_guess=True)
