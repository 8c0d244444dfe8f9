"""Interface of model registries: immutable, numbered versions and movable aliases.

`resolve_address` finds the version that `name`, `name@7` or `name@champion` means in any catalogue.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from models.checkpoint.manifest import (
    CHAMPION,
    MAX_NAME_LENGTH,
    ChangeStamp,
    Manifest,
    Version,
    choose_default,
    is_name,
    is_version_number,
    unknown_alias_error,
)
from models.errors import InvalidInputError, ModelNotFoundError


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


class Registry(ABC):
    """Models with immutable, numbered versions and movable aliases, wherever they are kept."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Name in messages: the folder or the URL."""

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

    @abstractmethod
    def aliases(self, name: str) -> dict[str, int]:
        """A model's aliases.

        Raises:
            ManifestError: aliases.json is damaged.
            RegistryError: the registry cannot be read.
        """

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

    @abstractmethod
    def set_alias(self, name: str, alias: str, number: int) -> None:
        """Point an alias at a version, atomically.

        Raises:
            ModelNotFoundError: there is no such version.
            InvalidInputError: the alias is not a name, or is a number.
            ManifestError: aliases.json is damaged (it is set anew if `alias` is the champion).
            RegistryError: the registry cannot be written to.
        """

    @abstractmethod
    def delete_alias(self, name: str, alias: str) -> int:
        """Take an alias away, atomically.

        Returns:
            The version that it pointed to.

        Raises:
            ModelNotFoundError: there is no such model or alias.
            ManifestError: aliases.json is damaged.
            RegistryError: the registry cannot be written to.
        """

    @abstractmethod
    def default(self) -> str | None:
        """The name of the model remembered for requests that name none, there or not; None if none is remembered.

        Raises:
            RegistryError: the registry cannot be read.
        """

    @abstractmethod
    def set_default(self, name: str) -> None:
        """Remember which model answers requests that name none, atomically.

        Raises:
            ModelNotFoundError: there is no such model.
            RegistryError: the registry cannot be written to.
        """

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
