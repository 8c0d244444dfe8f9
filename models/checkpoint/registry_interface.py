"""Interface of model registries: immutable, numbered versions and movable aliases.

`resolve_address` finds the version that `name`, `name@7` or `name@champion` means in any catalogue.
"""

import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from models.checkpoint.manifest import (
    ALIASES_FILE,
    CHAMPION,
    DEFAULT_FILE,
    MAX_NAME_LENGTH,
    ChangeStamp,
    Manifest,
    Version,
    check_alias,
    choose_default,
    format_aliases,
    format_default,
    is_name,
    is_version_number,
    parse_aliases,
    parse_default,
    unknown_alias_error,
)
from models.checkpoint.stores import ConditionalStore, ObjectStore, require_writable
from models.errors import InvalidInputError, ManifestError, ModelNotFoundError, RegistryError


class Catalogue(Protocol):
    """Lists of versions and aliases; `Registry` documents each method."""

    @property
    def location(self) -> str:
        """Name in messages."""
        ...

    def models(self) -> list[str]:
        """Names of the models with at least one version, sorted."""
        ...

    def versions(self, name: str) -> list[int]:
        """A model's version numbers, ascending."""
        ...

    def aliases(self, name: str) -> dict[str, int]:
        """A model's aliases."""
        ...

    def version(self, name: str, number: int) -> Version:
        """The version of this number, there or not."""
        ...


def resolve_address(catalogue: Catalogue, address: str) -> Version:
    """The version that `name`, `name@7` or `name@champion` means; a bare name means `champion`, else the newest.

    Raises:
        InvalidInputError: nothing stands after the `@`.
        ModelNotFoundError: there is no such model, version or alias; the message lists what there is.
        Whatever the catalogue raises where it cannot be read.
    """
    name, at, which = address.partition("@")
    if at and not which and is_name(name):
        raise InvalidInputError(
            f"the model is {address!r}; after @ stands a version's number or an alias, as in {name}@7 or "
            f"{name}@{CHAMPION}",
            parameter="model",
        )
    versions = catalogue.versions(name) if is_name(name) else []
    if not versions:
        known = ", ".join(catalogue.models()) or "none"
        raise ModelNotFoundError(
            f"there is no model {name[:MAX_NAME_LENGTH]!r} in {catalogue.location}; there are: {known}"
        )
    if which.isdecimal():
        if not is_version_number(which):
            raise ModelNotFoundError(f"model {name!r} has no version {which[:20]!r}: not a version number")
        number = int(which)
    else:
        aliases = catalogue.aliases(name)
        if which and which not in aliases:
            raise unknown_alias_error(name, which, aliases)
        number = aliases[which or CHAMPION] if (which or CHAMPION) in aliases else versions[-1]
    if number not in versions:
        # it may have been published, and the alias moved to it, since the versions were listed
        versions = catalogue.versions(name)
    if number not in versions:
        listed = ", ".join(map(str, versions[-10:]))
        raise ModelNotFoundError(f"model {name!r} has no version {number}; it has: {listed}")
    return catalogue.version(name, number)


_QUOTED_URL = re.compile(r""""[a-z][a-z0-9+.-]*://[^"]*"|'[a-z][a-z0-9+.-]*://[^']*'""", re.IGNORECASE)
_ACCOUNT = re.compile(r"\barn:[^\s,;]+")


_MAX_ALIAS_ATTEMPTS = 40
_ALIAS_RETRY_PAUSE_S = 0.02


def update_aliases(
    store: ConditionalStore,
    key: str,
    location: str,
    change: Callable[[dict[str, int]], dict[str, int]],
    *,
    replace_damaged: bool = False,
) -> dict[str, int]:
    """Change a model's aliases, on top of whatever others changed.

    Args:
        store: where they are.
        key: their object's.
        location: what messages call it.
        change: from what is there to what is to be; called again if somebody else was faster.
        replace_damaged: whether damaged aliases are replaced.

    Returns:
        What was there before.

    Raises:
        ManifestError: they are damaged.
        RegistryError: the store cannot be reached, or others change them without end.
        What `change` raises.
    """
    for attempt in range(_MAX_ALIAS_ATTEMPTS):
        current = store.read(key)
        aliases: dict[str, int] = {}
        if current is not None:
            try:
                aliases = parse_aliases(current.content, location)
            except ManifestError:
                if not replace_damaged:
                    raise
        content = format_aliases(change(aliases))
        if (
            store.put_if_absent(key, content)
            if current is None
            else store.put_if_match(key, content, current.tag)
        ):
            return aliases
        time.sleep(_ALIAS_RETRY_PAUSE_S * random.random() * min(attempt + 1, 10))
    raise RegistryError(f"{location} was changed by others {_MAX_ALIAS_ATTEMPTS} times in a row: try again")


class Registry(ABC):
    """Models with immutable, numbered versions and movable aliases, wherever they are kept.

    Args:
        store: store of its aliases and documents.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def location(self) -> str:
        """Name in messages: the folder or the URL."""
        return self._store.location

    @property
    @abstractmethod
    def work_folder(self) -> Path:
        """A local folder for what is not published yet, such as trainings that are to be resumed."""

    @property
    def is_reachable(self) -> bool:
        """Whether the last answer was the registry's own, and not what is known from before."""
        return True

    @abstractmethod
    def models(self) -> list[str]:
        """Names of the models with at least one version, sorted.

        Raises:
            RegistryError: the registry cannot be read, or is there no longer.
        """

    @abstractmethod
    def versions(self, name: str) -> list[int]:
        """A model's version numbers, ascending; empty if there is no such model.

        Raises:
            RegistryError: the registry cannot be read.
        """

    def aliases(self, name: str) -> dict[str, int]:
        """A model's aliases.

        Raises:
            ManifestError: aliases.json is damaged.
            RegistryError: the registry cannot be read.
        """
        return self._stored_aliases(name)

    def resolve(self, address: str) -> Version:
        """The version that `name`, `name@7` or `name@champion` means.

        A bare name means the alias `champion`, else the newest version.

        Raises:
            InvalidInputError: nothing stands after the `@`.
            ModelNotFoundError: there is no such model, version or alias; the message lists what there is.
            ManifestError: aliases.json is needed and damaged.
            RegistryError: the registry cannot be read.
        """
        return resolve_address(self, address)

    def resolve_cached(self, address: str) -> Version:
        """Resolve like `resolve`, from local knowledge: without a request to a remote registry.

        Raises:
            ModelNotFoundError: no such model, version or alias is known.
            ManifestError, RegistryError: what is known cannot be read.
        """
        return self.resolve(address)

    def published(self) -> list[Version]:
        """Every version of every model.

        Raises:
            RegistryError: the registry cannot be read.
        """
        return [self.version(name, number) for name in self.models() for number in self.versions(name)]

    @abstractmethod
    def version(self, name: str, number: int) -> Version:
        """The version of this number, there or not."""

    def location_of(self, version: Version) -> str:
        """Name of a version's location in messages."""
        return f"{self.location}/{version.name}/versions/{version.number}"

    @abstractmethod
    def fetch(self, version: Version) -> Path:
        """The folder with all files of a version, which is laid there first where it is not.

        Raises:
            CheckpointError: its files are not those that were published.
            RegistryError: they cannot be read, or there is no room for them.
        """

    @abstractmethod
    def manifest(self, version: Version) -> Manifest:
        """A version's manifest, without its files.

        Raises:
            CheckpointError: it is missing or damaged.
            RegistryError: it cannot be read.
        """

    @abstractmethod
    def read_file(self, version: Version, name: str) -> bytes:
        """One small file of a version, such as `metrics.json`, without the others.

        Raises:
            CheckpointError: it is missing or damaged.
            RegistryError: it cannot be read.
        """

    @abstractmethod
    def publish(self, name: str, write: Callable[[Path], None]) -> Version:
        """Make a new version.

        Args:
            name: the model; letters, digits, `.`, `_` and `-`.
            write: fills the folder it is given with a whole checkpoint, manifest last.

        Raises:
            InvalidInputError: the name cannot be a folder's.
            CheckpointError: what was written does not verify; nothing is published.
            RegistryError: the registry cannot be written to; nothing is published.
        """

    def set_alias(self, name: str, alias: str, number: int) -> None:
        """Point an alias at a version, atomically.

        Raises:
            ModelNotFoundError: there is no such version.
            InvalidInputError: the alias is not a name, or is a number.
            ManifestError: aliases.json is damaged (it is set anew if `alias` is the champion).
            RegistryError: the registry cannot be written to.
        """
        check_alias(alias)
        require_writable(self._store)
        self.resolve(f"{name}@{number}")
        before = self._update_aliases(
            name, lambda aliases: {**aliases, alias: number}, replace_damaged=alias == CHAMPION
        )
        if number in self._stored_versions(name):
            return

        def back(aliases: dict[str, int]) -> dict[str, int]:
            remaining = {existing: target for existing, target in aliases.items() if existing != alias}
            return {**remaining, alias: before[alias]} if alias in before else remaining

        # somebody deleted it meanwhile, who looks at the aliases after that
        self._update_aliases(name, back)
        raise ModelNotFoundError(f"model {name!r} has no version {number}: it was deleted just now")

    def delete_alias(self, name: str, alias: str) -> int:
        """Take an alias away, atomically.

        Returns:
            The version that it pointed to.

        Raises:
            ModelNotFoundError: there is no such model or alias.
            ManifestError: aliases.json is damaged.
            RegistryError: the registry cannot be written to.
        """
        require_writable(self._store)
        self.resolve(name)

        def without(aliases: dict[str, int]) -> dict[str, int]:
            if alias not in aliases:
                raise unknown_alias_error(name, alias, aliases)
            return {existing: number for existing, number in aliases.items() if existing != alias}

        return self._update_aliases(name, without)[alias]

    def default(self) -> str | None:
        """The name of the model remembered for requests that name none, there or not; None if none is remembered.

        Raises:
            RegistryError: the registry cannot be read.
        """
        return parse_default(self._stored_default())

    def set_default(self, name: str) -> None:
        """Remember which model answers requests that name none, atomically.

        Raises:
            ModelNotFoundError: there is no such model.
            RegistryError: the registry cannot be written to.
        """
        self.resolve(name)
        require_writable(self._store).put(DEFAULT_FILE, format_default(name))

    def pin_default(self, coming: str) -> None:
        """Remember what the default has been so far, if a model of another name is about to be published.

        Raises:
            RegistryError: the registry cannot be read or written to.
        """
        names = self.models()
        if names and coming not in names and self.default() not in names:
            self.set_default(choose_default(names, None).name)

    @abstractmethod
    def sweep(self, *, older_than_s: float) -> int:
        """Remove what interrupted publishers and deleted versions left behind.

        Args:
            older_than_s: what is younger may belong to somebody who is still publishing; it stays.

        Returns:
            How many files or folders were removed.

        Raises:
            RegistryError: the registry cannot be read or written to.
        """

    @abstractmethod
    def change_stamps(self, names: Iterable[str] | None = None) -> dict[str, ChangeStamp]:
        """Cheap fingerprint of a model's versions and aliases, to detect changes; nothing is read.

        Two changes at nearly the same time may have one stamp: look a second time.

        Args:
            names: of models, there or not; None means every model of the registry.

        Raises:
            RegistryError: the registry cannot be read.
        """

    @abstractmethod
    def delete(self, name: str, number: int) -> None:
        """Remove a version; its number is never used again.

        Raises:
            ModelNotFoundError: there is no such version.
            InvalidInputError: an alias points to it.
            RegistryError: the registry cannot be written to.
        """

    @abstractmethod
    def _stored_versions(self, name: str) -> list[int]:
        """Version numbers as the store has them now."""

    def _stored_aliases(self, name: str) -> dict[str, int]:
        """Aliases as the store has them now."""
        found = self._store.read(f"{name}/{ALIASES_FILE}")
        return {} if found is None else parse_aliases(found.content, self._path_of(name, ALIASES_FILE))

    def _stored_default(self) -> bytes:
        """Content of the file of the default as the store has it now; empty if there is none."""
        found = self._store.read(DEFAULT_FILE)
        return b"" if found is None else found.content

    def _update_aliases(
        self, name: str, change: Callable[[dict[str, int]], dict[str, int]], *, replace_damaged: bool = False
    ) -> dict[str, int]:
        """Change a model's aliases, as `update_aliases`."""
        return update_aliases(
            require_writable(self._store),
            f"{name}/{ALIASES_FILE}",
            self._path_of(name, ALIASES_FILE),
            change,
            replace_damaged=replace_damaged,
        )

    def _path_of(self, *parts: str) -> str:
        """Name of a file in messages."""
        return "/".join((self.location, *parts))

    def redact_location(self, message: str) -> str:
        """A message without where the registry lies."""
        for path in (self.location, str(self.work_folder)):
            # as a whole: a folder may be called `.` or like a word of the message
            pattern = rf"(?<![\w.-]){re.escape(path)}(/|(?![\w-]))"
            message = re.sub(pattern, lambda found: "" if found[1] else "registry", message)
        return redact_accounts(message)


def redact_accounts(message: str) -> str:
    """A message without what stores quote in theirs: their own URL, and the account that was refused."""
    return _QUOTED_URL.sub("…", _ACCOUNT.sub("…", message))
