"""API keys: creation, parsing, verification, and the key file.

A key has 256 random bits and cannot be guessed, so a fast hash, salted SHA-256, is enough. A slow
password hash would add tens of milliseconds to every request. Each key is stored as one line, from
which the key cannot be derived:

    <name>:<scopes, separated by commas>:sha256-<salt>-<digest>      (hexadecimal salt and digest)

This module imports no web framework.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import structlog

from models.errors import FormatError, InputError
from models.files import read_settings_file

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"sha256-([0-9a-f]{32})-([0-9a-f]{64})")
_KEY_BYTES = 32
_SALT_BYTES = 16
_MAX_PRESENTED_BYTES = 256
_CHECK_INTERVAL_S = 1.0
_NEVER_SEEN = (-1, -1, -1)
FileStamp = tuple[int, int, int]
_log = structlog.get_logger(__name__)


class KeyScope(StrEnum):
    """Scope of a key; no scope includes another."""

    INFER = "infer"
    METRICS = "metrics"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Stored record of a key, which verifies the key without revealing it.

    Attributes:
        name: name of the owner, for the log.
        scopes: scopes that the key grants.
        salt: bytes prepended to the key before hashing.
        digest: SHA-256 of salt and key.
    """

    name: str
    scopes: frozenset[KeyScope]
    salt: bytes
    digest: bytes

    @property
    def line(self) -> str:
        """Line of the key in a key file."""
        scopes = ",".join(scope for scope in KeyScope if scope in self.scopes)
        return f"{self.name}:{scopes}:sha256-{self.salt.hex()}-{self.digest.hex()}"


class NewKey(NamedTuple):
    """New key and its record.

    Attributes:
        secret: the key itself, sent by its owner and never stored.
        key: record to store.
    """

    secret: str
    key: ApiKey


def create_key(name: str, scopes: Iterable[str]) -> NewKey:
    """Create a key.

    Raises:
        InputError: the name or a scope is invalid.
    """
    secret, salt = f"gm_{secrets.token_urlsafe(_KEY_BYTES)}", secrets.token_bytes(_SALT_BYTES)
    return NewKey(secret, _checked_key(name, scopes, salt, _digest(salt, secret.encode())))


def parse_key(line: str) -> ApiKey:
    """Parse the line of a stored key.

    Raises:
        InputError: the line is invalid; it may be a secret, so the message does not quote it.
    """
    fields = line.split(":")
    if len(fields) != 3:
        raise InputError(f"a key has 3 fields, name:scopes:hash; this one has {len(fields)}")
    name, scopes, hashed = fields
    match = _HASH.fullmatch(hashed)
    if match is None:
        raise InputError("the third field is not sha256-<32 hex digits>-<64 hex digits>")
    salt, digest = map(bytes.fromhex, match.groups())
    return _checked_key(name, scopes.split(","), salt, digest)


def find_key(keys: Iterable[ApiKey], presented: bytes) -> ApiKey | None:
    """Return the record of the presented key, or None.

    The comparison takes constant time, so it reveals no part of the key.
    """
    if len(presented) > _MAX_PRESENTED_BYTES:
        return None
    match = None
    for key in keys:
        if hmac.compare_digest(_digest(key.salt, presented), key.digest):
            match = key  # no early return: constant time
    return match


def _digest(salt: bytes, secret: bytes) -> bytes:
    return hashlib.sha256(salt + secret).digest()


def _checked_key(name: str, scopes: Iterable[str], salt: bytes, digest: bytes) -> ApiKey:
    if _NAME.fullmatch(name) is None:
        raise InputError(
            "the name of a key must have 1 to 64 letters, digits, dots, dashes or underscores, and start with a "
            "letter or digit",
            param="name",
        )
    try:
        known = frozenset(KeyScope(scope.strip()) for scope in scopes)
    except ValueError:
        known = frozenset()
    if not known:
        raise InputError.of("scopes", f"must be a comma-separated list of {', '.join(KeyScope)}")
    return ApiKey(name, known, salt, digest)


class KeyStore:
    """Store of the valid keys.

    The key file is checked for changes at most once per second and reloaded, so keys are issued and revoked
    without a restart. If it is damaged or empty, the previous keys stay valid, so a mistake in it neither
    opens the service nor locks out its users.

    Args:
        entries: keys in the format of `parse_key`.
        file: file with a key per line; empty lines and `#` comments are ignored.
        clock: monotonic clock in seconds.

    Raises:
        InputError: an entry is invalid, or two keys have the same name.
        FormatError: the file is missing or damaged, or contains no key.
    """

    def __init__(
        self,
        *,
        entries: Sequence[str] = (),
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = _parse_keys(
            {f"GRAMOPHONE_API_KEYS, entry {i}": key for i, key in enumerate(entries, 1)}
        )
        self._file = file
        self._clock = clock
        self._stamp = None if file is None else file_stamp(file)
        self._next_check_s = clock() + _CHECK_INTERVAL_S
        self._keys = self._fixed if file is None else self._read(file)

    def __bool__(self) -> bool:
        """Return whether any key exists, without which everything except administration is open."""
        return bool(self._keys)

    def find(self, presented: bytes) -> ApiKey | None:
        """Return the record of a valid key, else None."""
        now_s = self._clock()
        if self._file is not None and now_s >= self._next_check_s:
            self._next_check_s = now_s + _CHECK_INTERVAL_S
            self._refresh(self._file)
        return find_key(self._keys, presented)

    def force_reload(self) -> None:
        """Reload the file at the next request; safe in a signal handler."""
        self._next_check_s = self._clock()
        self._stamp = _NEVER_SEEN

    def _refresh(self, file: Path) -> None:
        stamp = file_stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp  # a damaged file is logged once
        try:
            keys = self._read(file)
        except (FormatError, InputError) as error:
            _log.error("API keys not reloaded", reason=str(error))
        else:
            self._keys = keys
            _log.info("API keys reloaded", keys=[key.name for key in keys])

    def _read(self, file: Path) -> tuple[ApiKey, ...]:
        """Return the fixed keys and those of the file."""
        try:
            lines = read_settings_file(file).decode("utf-8-sig").splitlines()
        except OSError as error:
            raise FormatError(
                file, f"the file of GRAMOPHONE_API_KEYS_FILE cannot be read: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            raise FormatError(file, "is not UTF-8", hint="write one key per line") from None
        numbered = ((i, line.strip()) for i, line in enumerate(lines, 1))
        in_file = {f"line {i}": line for i, line in numbered if line and not line.startswith("#")}
        try:
            keys = _parse_keys(in_file, self._fixed)
        except InputError as error:
            raise FormatError(file, str(error), hint="`gramophone keys create` writes valid lines") from None
        if not in_file:
            raise FormatError(file, "contains no key", hint="create one with `gramophone keys create`")
        return keys


def _parse_keys(lines: Mapping[str, str], fixed: tuple[ApiKey, ...] = ()) -> tuple[ApiKey, ...]:
    """Parse lines by their names in errors; return the fixed keys and theirs, whose names must differ."""
    keys = [*fixed]
    for source, line in lines.items():
        try:
            keys.append(parse_key(line))
        except InputError as error:
            raise InputError(f"{source}: {error}", param="GRAMOPHONE_API_KEYS") from None
    duplicates = [name for name, count in Counter(key.name for key in keys).items() if count > 1]
    if duplicates:
        raise InputError(
            f"two keys are named {min(duplicates)}; names must be unique", param="GRAMOPHONE_API_KEYS"
        )
    return tuple(keys)


def file_stamp(file: Path) -> FileStamp | None:
    """Return a stamp that changes with the file or a link's target (a mounted secret).

    It is None while the file is missing.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
