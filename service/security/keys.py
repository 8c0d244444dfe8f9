"""API keys: how they are made, kept and recognised.

A key is 256 random bits, so nobody guesses one from its hash, however fast the hash: a salted SHA-256
is enough. The slow hashes made for people's passwords would cost every request tens of milliseconds.
What is kept is one line a key, without the key itself:

    <name>:<scopes, with commas between>:sha256-<salt>-<digest>      both in hexadecimal
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from models.errors import InvalidInputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"sha256-([0-9a-f]{32})-([0-9a-f]{64})")
_KEY_BYTES = 32
_SALT_BYTES = 16
_MAX_PRESENTED_BYTES = 256


class KeyScope(StrEnum):
    """What a key is good for; none of them includes another."""

    INFER = "infer"
    METRICS = "metrics"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key: enough to recognise it, not enough to use it.

    Attributes:
        name: whose it is; stands in the log.
        scopes: what it is good for.
        salt: hashed before the key.
        digest: SHA-256 of both.
    """

    name: str
    scopes: frozenset[KeyScope]
    salt: bytes
    digest: bytes

    @property
    def line(self) -> str:
        """How it is kept."""
        scopes = ",".join(scope for scope in KeyScope if scope in self.scopes)
        return f"{self.name}:{scopes}:sha256-{self.salt.hex()}-{self.digest.hex()}"


class NewKey(NamedTuple):
    """A key that was just made.

    Attributes:
        secret: the key itself, which its owner sends and nobody keeps.
        key: what is kept.
    """

    secret: str
    key: ApiKey


def create_key(name: str, scopes: Iterable[str]) -> NewKey:
    """Make a key.

    Raises:
        InvalidInputError: the name or a scope is none.
    """
    secret, salt = f"gm_{secrets.token_urlsafe(_KEY_BYTES)}", secrets.token_bytes(_SALT_BYTES)
    key = ApiKey(_checked_name(name), _checked_scopes(scopes), salt, _digest(salt, secret.encode()))
    return NewKey(secret, key)


def parse_key(line: str) -> ApiKey:
    """Read the line that a key is kept as.

    Raises:
        InvalidInputError: it is not one; the message does not quote it, as it may hold a secret by mistake.
    """
    fields = line.split(":")
    if len(fields) != 3:
        raise InvalidInputError(f"a key has 3 fields, name:scopes:hash, here there are {len(fields)}")
    name, scopes, hashed = fields
    match = _HASH.fullmatch(hashed)
    if match is None:
        raise InvalidInputError("the third field is not sha256-<32 hex digits>-<64 hex digits>")
    salt, digest = map(bytes.fromhex, match.groups())
    return ApiKey(_checked_name(name), _checked_scopes(scopes.split(",")), salt, digest)


def find_key(keys: Iterable[ApiKey], presented: bytes) -> ApiKey | None:
    """The key that was presented, if it is one of these.

    Every key is compared whole, so the time tells nothing of which one it was, or how much was right.
    """
    if len(presented) > _MAX_PRESENTED_BYTES:
        return None
    found = None
    for key in keys:
        if hmac.compare_digest(_digest(key.salt, presented), key.digest):
            found = key  # and go on
    return found


def _digest(salt: bytes, secret: bytes) -> bytes:
    return hashlib.sha256(salt + secret).digest()


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise InvalidInputError(
            "a key's name has 1 to 64 letters, digits, dots, dashes and underscores, and starts with one of the "
            "first two",
            parameter="name",
        )
    return name


def _checked_scopes(scopes: Iterable[str]) -> frozenset[KeyScope]:
    try:
        known = frozenset(KeyScope(scope.strip()) for scope in scopes)
    except ValueError:
        known = frozenset()
    if not known:
        raise InvalidInputError(
            f"the scopes must be among {', '.join(KeyScope)}, with commas between", parameter="scopes"
        )
    return known
