"""Manifest of a checkpoint, and the names, numbers, aliases and default model of a registry.

`manifest.json` describes a checkpoint and lists every other file's hash. It is written last, with a
checksum of its own canonical bytes, so damage to any byte is detected.

The default model answers requests that name none. A registry with several models stores its name in
`.default`, before a second name is published or by `gramophone models default`. So a new name never
changes the default, and a service writes nothing.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from models.errors import (
    BAD_DATA_ERRORS,
    CheckpointError,
    IncompatibleVersionError,
    InputError,
    IntegrityError,
    ManifestError,
    ModelNotFoundError,
)
from models.files import check_config

MANIFEST_FILE = "manifest.json"
SCHEMA_VERSION = 2
"""Version that this code writes, and the newest it reads."""

Direction = Literal["forward", "backward"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

CHAMPION = "champion"
ALIASES_FILE = "aliases.json"
MAX_NAME_LENGTH = 100
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

DEFAULT_FILE = ".default"
PREFERRED_DEFAULT = "mixture"
_DEFAULT_HINT = "choose one with `gramophone models default NAME` or GRAMOPHONE_DEFAULT_MODEL"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Strict):
    """Hash and size of a file."""

    sha256: Sha256
    bytes: int = Field(ge=0)


class SpecialIds(_Strict):
    """Ids of the control tokens."""

    unk: int
    bos: int
    eos: int


class Manifest(_Strict):
    """Description of a checkpoint.

    `reader_version` is the smallest `SCHEMA_VERSION` that can read it. `created` is ISO 8601, UTC.
    `direction` is the order in which the model reads tokens; `backward` is from the end of a text to
    its start. `normalisation_deviation` is the largest |Σp − 1|, measured when it was written.
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
    """Return hash and size of every file but the top manifest."""
    return {
        path.relative_to(directory).as_posix(): FileEntry(sha256=sha256_of(path), bytes=path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path != directory / MANIFEST_FILE
    }


def sha256_of(path: Path) -> str:
    """Compute a file's SHA-256 in hex, in bounded memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, after all other files of a checkpoint."""
    fields = manifest.model_dump(mode="json")
    fields["checksum"] = _checksum(fields)
    (directory / MANIFEST_FILE).write_bytes(format_json(fields))


def read_manifest(directory: Path) -> Manifest:
    """Read and check `manifest.json`; the listed files are not read.

    Raises:
        ManifestError: it is missing, unreadable, or violates the schema.
        IntegrityError: its bytes differ from those written.
        IncompatibleVersionError: it requires a newer reader.
    """
    path = directory / MANIFEST_FILE
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ManifestError(f"{path} is missing: not a checkpoint, or an unfinished one") from None
    except OSError as error:
        raise ManifestError(f"{path} is not a manifest: {error}") from None
    return parse_manifest(raw, path)


def parse_manifest(raw: bytes, location: object) -> Manifest:
    """Parse and check a `manifest.json`; messages name its location.

    Raises:
        ManifestError: it violates the schema.
        IntegrityError: its bytes differ from those written.
        IncompatibleVersionError: it requires a newer reader.
    """
    try:
        fields: Any = json.loads(raw)
        needed = int(fields["reader_version"])
    except BAD_DATA_ERRORS as error:
        raise ManifestError(f"{location} is not a manifest: {error}") from None
    if needed > SCHEMA_VERSION:
        raise _too_new(location, needed)
    try:
        return _checked(raw, fields, location)
    except CheckpointError:
        written = fields.get("schema_version")
        # may be valid in a newer version
        if isinstance(written, int) and written > SCHEMA_VERSION:
            raise _too_new(location, written) from None
        raise


def _too_new(location: object, version: int) -> IncompatibleVersionError:
    return IncompatibleVersionError(
        f"{location} needs a newer Gramophone: its version is {version}, this one reads up to {SCHEMA_VERSION}: "
        "upgrade gramophone-lm"
    )


def _checked(raw: bytes, fields: dict[str, Any], location: object) -> Manifest:
    checksum = fields.pop("checksum", None)
    try:
        is_intact = checksum == _checksum(fields) and raw == format_json({**fields, "checksum": checksum})
    except RecursionError:  # parsed, but never written: too deep
        is_intact = False
    if not is_intact:  # or the bytes are not canonical
        raise IntegrityError(f"{location} was changed after it was written: its checksum does not match")
    manifest = check_config(Manifest, fields, location)
    for name in manifest.files:
        if not _is_inside(name):
            raise ManifestError(f"{location} lists a file outside the checkpoint: {name!r}")
    return manifest


def _is_inside(name: str) -> bool:
    """True if a name is a canonical path inside the checkpoint, not the manifest."""
    path = PurePosixPath(name)  # two leading slashes count as absolute, too
    is_plain = name.isprintable() and path.as_posix() == name and not path.is_absolute()
    return is_plain and ".." not in path.parts and name not in {".", MANIFEST_FILE}


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Compare every listed file's size and hash with the manifest.

    Raises:
        IntegrityError: a file is missing, truncated, or changed; the message names it.
    """
    for name, entry in manifest.files.items():
        path = directory / name
        try:
            size = path.stat().st_size
            if size != entry.bytes:
                raise IntegrityError(f"{path} has {size} bytes, but {entry.bytes} were published")
            if sha256_of(path) != entry.sha256:
                raise IntegrityError(f"{path} was changed after it was published: its SHA-256 does not match")
        except OSError as error:
            raise IntegrityError(f"{path} cannot be read: {error.strerror}") from None


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(format_json(fields)).hexdigest()


def format_json(fields: Mapping[str, Any]) -> bytes:
    """Format a JSON object in canonical form."""
    return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()


class Version(NamedTuple):
    """Published version of a model.

    Attributes:
        name: name of the model.
        number: version number.
        path: its folder: a local registry's own, else the one that `Registry.fetch` fills.
    """

    name: str
    number: int
    path: Path

    @property
    def address(self) -> str:
        """Address `name@number`."""
        return f"{self.name}@{self.number}"


def is_name(name: str) -> bool:
    """True if a string can be the name of a model or an alias."""
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def is_version_number(text: str) -> bool:
    """True if a string is a version number as in paths and addresses."""
    return _NUMBER.fullmatch(text) is not None


def check_name(name: str, *, param: str = "name") -> None:
    """Check the name of a model or an alias.

    Raises:
        InputError: it has characters other than letters, digits, `.`, `_` and `-`, or is too long.
    """
    if not is_name(name):
        raise InputError.of(
            param,
            f"is {name[:120]!r}; it must start with a letter or digit, continue with letters, digits, "
            f"'.', '_' or '-', and have at most {MAX_NAME_LENGTH} characters",
        )


def check_unaliased(version: Version, aliases: dict[str, int]) -> None:
    """Raise InputError if an alias points to a version to be deleted."""
    pointing = [alias for alias, target in aliases.items() if target == version.number]
    if pointing:
        raise InputError(
            f"{version.address} is {' and '.join(pointing)}: move the alias to another version first",
            param="version",
        )


def unknown_alias_error(name: str, alias: str, aliases: Iterable[str]) -> ModelNotFoundError:
    """Create the error of an unknown alias; it lists others."""
    known = ", ".join(sorted(aliases)) or "none"
    return ModelNotFoundError(
        f"model {name!r} has no alias {alias[:MAX_NAME_LENGTH]!r}; its aliases: {known}"
    )


def version_address(path: Path) -> str:
    """Return the address `name@version` of a version's folder."""
    return f"{path.parents[1].name}@{path.name}"


class DefaultChoice(NamedTuple):
    """Default model, chosen among several.

    Attributes:
        name: its name.
        reason: reason of the choice.
        is_guess: True if none is stored and there are other models.
    """

    name: str
    reason: str
    is_guess: bool = False


def choose_default(names: Sequence[str], remembered: str | None) -> DefaultChoice:
    """Choose the default among one or more models.

    Args:
        names: names of the models, sorted.
        remembered: name stored in the registry.
    """
    if remembered is not None and remembered in names:
        return DefaultChoice(remembered, "it is set as the registry's default")
    if len(names) == 1:
        return DefaultChoice(names[0], "it is the only model")
    name, reason = names[0], "this is the first name in alphabetical order"
    if PREFERRED_DEFAULT in names:
        name, reason = PREFERRED_DEFAULT, "a model of this name is preferred"
    missing = (
        "no default was chosen" if remembered is None else f"the chosen default {remembered!r} does not exist"
    )
    return DefaultChoice(name, f"{missing}, and {reason}: {_DEFAULT_HINT}", is_guess=True)
