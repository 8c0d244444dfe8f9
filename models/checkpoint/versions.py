"""Names, numbers and aliases: how a model and its versions are addressed, in every registry."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from models.errors import InvalidInputError, ManifestError, ModelNotFoundError

CHAMPION = "champion"
ALIASES_FILE = "aliases.json"
MAX_NAME_LENGTH = 100
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

ChangeStamp: TypeAlias = tuple[int | str, ...]
"""Another one means that something has changed."""


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
    """Whether it can be the name of a model or an alias."""
    return len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def is_version_number(text: str) -> bool:
    """Whether it is a version number as it is spelled in paths and addresses."""
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


def check_alias(alias: str) -> None:
    """Refuse what cannot be an alias.

    Raises:
        InvalidInputError: it is not a name, or is a number.
    """
    if alias.isdecimal():
        raise InvalidInputError(f"the alias {alias!r} would read as a version number", parameter="alias")
    check_name(alias, parameter="alias")


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


def parse_aliases(content: bytes, place: object) -> dict[str, int]:
    """Read `aliases.json`.

    Args:
        content: its bytes.
        place: what messages call it.

    Raises:
        ManifestError: it is damaged.
    """
    try:
        aliases: Any = json.loads(content)
        if not isinstance(aliases, dict) or not all(
            is_name(alias) and type(number) is int and is_version_number(str(number))
            for alias, number in aliases.items()
        ):
            raise ValueError("it must map names to version numbers")  # noqa: TRY301 - same message as bad JSON
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f"{place} is damaged: {error}; set the alias again with `gramophone models promote`"
        ) from None
    return aliases


def format_aliases(aliases: dict[str, int]) -> bytes:
    """Write `aliases.json`."""
    return (json.dumps(aliases, indent=1, sort_keys=True) + "\n").encode()


def unknown_alias_error(name: str, alias: str, aliases: Iterable[str]) -> ModelNotFoundError:
    """The error that lists the aliases there are."""
    known = ", ".join(sorted(aliases)) or "none"
    return ModelNotFoundError(
        f"model {name!r} has no alias {alias[:MAX_NAME_LENGTH]!r}; its aliases: {known}"
    )
