"""Interface of model registries: immutable, numbered versions and movable aliases.

`Catalogue` finds the version that `name`, `name@7` or `name@champion` means by what a store lists.
"""

import json
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.folders import report_write_errors, temporary_folder
from models.checkpoint.manifest import (
    ALIASES_FILE,
    CHAMPION,
    DEFAULT_FILE,
    MAX_NAME_LENGTH,
    Manifest,
    Version,
    check_name,
    choose_default,
    format_aliases,
    is_name,
    is_version_number,
    read_manifest,
    unknown_alias_error,
    verify_files,
)
from models.checkpoint.stores import (
    ModelEntries,
    ModelStamp,
    ObjectStore,
    TaggedContent,
    list_models,
    require_writable,
)
from models.errors import InvalidInputError, ManifestError, ModelNotFoundError, RegistryError


class ModelSnapshot(NamedTuple):
    """Versions and aliases of a model as they were read once.

    Attributes:
        aliases: the aliases.
        stamp: the versions, and what `Registry.change_stamps` tells for as long as nothing is changed.
    """

    aliases: dict[str, int]
    stamp: ModelStamp


class Catalogue:
    """Versions and aliases of the models in a store.

    Args:
        store: what is asked.
        folder: where versions lie, or are laid.
    """

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._reads = store
        self._folder = folder

    @property
    def location(self) -> str:
        """Name in messages: the folder or the URL."""
        return self._reads.location

    def entries(self, folder: str = "") -> dict[str, ModelEntries]:
        """Models by name, those without versions included; all, or that in a folder.

        Raises:
            RegistryError: the registry cannot be read.
        """
        return list_models(self._reads.entries(folder))

    def models(self) -> list[str]:
        """Names of the models with at least one version, sorted.

        Raises:
            RegistryError: the registry cannot be read, or is there no longer.
        """
        return sorted(name for name, model in self.entries().items() if model.versions)

    def versions(self, name: str) -> list[int]:
        """A model's version numbers, ascending; empty if there is no such model.

        Raises:
            RegistryError: the registry cannot be read.
        """
        return self.entries(name).get(name, ModelEntries()).versions if is_name(name) else []

    def aliases(self, name: str) -> dict[str, int]:
        """A model's aliases.

        Raises:
            ManifestError: aliases.json is damaged.
            RegistryError: the registry cannot be read.
        """
        return self._parse_aliases(name, self._reads.read(f"{name}/{ALIASES_FILE}"))

    def default(self) -> str | None:
        """The name of the model remembered for requests that name none, there or not; None if none is remembered.

        Raises:
            RegistryError: the registry cannot be read.
        """
        found = self._reads.read(DEFAULT_FILE)
        name = "" if found is None else found.content.decode("utf-8-sig", errors="replace").strip()
        return name if is_name(name) else None

    def published(self) -> list[Version]:
        """Every version of every model.

        Raises:
            RegistryError: the registry cannot be read.
        """
        models = sorted(self.entries().items())
        return [self.version(name, number) for name, model in models for number in model.versions]

    def version(self, name: str, number: int) -> Version:
        """The version of this number, there or not."""
        return Version(name, number, self._folder / name / "versions" / str(number))

    def resolve(self, address: str, seen: ModelSnapshot | None = None) -> Version:
        """The version that `name`, `name@7` or `name@champion` means.

        A bare name means the alias `champion`, else the newest version.

        Args:
            address: what is looked for.
            seen: what is known of the model; None means that the registry is asked.

        Raises:
            InvalidInputError: nothing stands after the `@`.
            ModelNotFoundError: there is no such model, version or alias; the message lists what there is.
            ManifestError: aliases.json is needed and damaged.
            RegistryError: the registry cannot be read.
        """
        name, at, which = address.partition("@")
        if at and not which and is_name(name):
            raise InvalidInputError(
                f"the model is {address!r}; after @ stands a version's number or an alias, as in {name}@7 or "
                f"{name}@{CHAMPION}",
                parameter="model",
            )
        versions = self.versions(name) if seen is None else list(seen.stamp.versions)
        if not versions:
            known = ", ".join(self.models()) or "none"
            raise ModelNotFoundError(
                f"there is no model {name[:MAX_NAME_LENGTH]!r} in {self.location}; there are: {known}"
            )
        if which.isdecimal():
            if not is_version_number(which):
                raise ModelNotFoundError(
                    f"model {name!r} has no version {which[:20]!r}: not a version number"
                )
            number = int(which)
        else:
            aliases = self.aliases(name) if seen is None else seen.aliases
            if which and which not in aliases:
                raise unknown_alias_error(name, which, aliases)
            number = aliases.get(which or CHAMPION, versions[-1])
        if number not in versions and seen is None:
            # it may have been published, and the alias moved to it, since the versions were listed
            versions = self.versions(name)
        if number not in versions:
            listed = ", ".join(map(str, versions[-10:]))
            raise ModelNotFoundError(f"model {name!r} has no version {number}; it has: {listed}")
        return self.version(name, number)

    def _parse_aliases(self, name: str, found: TaggedContent | None) -> dict[str, int]:
        """Aliases of a model in what was found in their file."""
        if found is None:
            return {}
        try:
            aliases: Any = json.loads(found.content)
            if not isinstance(aliases, dict) or not all(
                is_name(alias) and type(number) is int and is_version_number(str(number))
                for alias, number in aliases.items()
            ):
                raise ValueError("it must map names to version numbers")  # noqa: TRY301 - same message as bad JSON
        except (ValueError, RecursionError) as error:
            raise ManifestError(
                f"{self._path_of(name, ALIASES_FILE)} is damaged: {error}; set the alias again with "
                "`gramophone models promote`"
            ) from None
        return aliases

    def _path_of(self, *parts: str) -> str:
        """Name of a file in messages."""
        return "/".join((self.location, *parts))


_QUOTED_URL = re.compile(r""""[a-z][a-z0-9+.-]*://[^"]*"|'[a-z][a-z0-9+.-]*://[^']*'""", re.IGNORECASE)
_ACCOUNT = re.compile(r"\barn:[^\s,;]+")
_MAX_ALIAS_ATTEMPTS = 40
_ALIAS_RETRY_PAUSE_S = 0.02


class Registry(Catalogue, ABC):
    """Models with immutable, numbered versions and movable aliases, wherever they are kept.

    Args:
        store: what lies in it is changed in this store.
        folder: where versions lie, or are laid.
        reads: store that answers questions, from a cache say; None means the same.
    """

    def __init__(self, store: ObjectStore, folder: Path, reads: ObjectStore | None = None) -> None:
        super().__init__(reads or store, folder)
        self._store = store
        self._stored = Catalogue(store, folder)

    @property
    def work_folder(self) -> Path:
        """A local folder for what is not published yet, such as trainings that are to be resumed."""
        return self._folder

    @property
    def is_reachable(self) -> bool:
        """Whether the last answer was the registry's own, and not what is known from before."""
        return True

    def resolve_cached(self, address: str) -> Version:
        """Resolve like `resolve`, from local knowledge: without a request to a remote registry.

        Raises:
            ModelNotFoundError: no such model, version or alias is known.
            ManifestError, RegistryError: what is known cannot be read.
        """
        return self.resolve(address)

    def snapshot(self, name: str) -> ModelSnapshot:
        """Read the versions and aliases of a model once.

        Raises:
            ManifestError: aliases.json is damaged.
            RegistryError: the registry cannot be read.
        """
        if not is_name(name):
            return ModelSnapshot({}, ModelStamp((), ""))
        # in this order: what an alias leads to was published before
        found = self._reads.read(f"{name}/{ALIASES_FILE}")
        stamp = ModelStamp(tuple(self.versions(name)), "" if found is None else found.tag)
        return ModelSnapshot(self._parse_aliases(name, found), stamp)

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
        check_name(name)
        require_writable(self._store)
        versions = self._folder / name / "versions"
        with report_write_errors(versions), temporary_folder(versions) as folder:
            write(folder)
            manifest = read_manifest(folder)
            verify_files(folder, manifest)
            return self._publish_folder(name, folder, manifest)

    @abstractmethod
    def _publish_folder(self, name: str, folder: Path, manifest: Manifest) -> Version:
        """Make a new version of a folder that was verified; the folder may be renamed."""

    def set_alias(self, name: str, alias: str, number: int) -> None:
        """Point an alias at a version, atomically.

        Raises:
            ModelNotFoundError: there is no such version.
            InvalidInputError: the alias is not a name, or is a number.
            ManifestError: aliases.json is damaged (it is set anew if `alias` is the champion).
            RegistryError: the registry cannot be written to.
        """
        if alias.isdecimal():
            raise InvalidInputError(f"the alias {alias!r} would read as a version number", parameter="alias")
        check_name(alias, parameter="alias")
        require_writable(self._store)
        self.resolve(f"{name}@{number}")
        before = self._update_aliases(
            name, lambda aliases: {**aliases, alias: number}, replace_damaged=alias == CHAMPION
        )
        if number in self._stored.versions(name):
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

    def set_default(self, name: str) -> None:
        """Remember which model answers requests that name none, atomically.

        Raises:
            ModelNotFoundError: there is no such model.
            RegistryError: the registry cannot be written to.
        """
        self.resolve(name)
        require_writable(self._store).put(DEFAULT_FILE, f"{name}\n".encode())

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

    def change_stamps(self, names: Iterable[str] | None = None) -> dict[str, ModelStamp]:
        """Cheap fingerprint of a model's versions and aliases, to detect changes.

        Args:
            names: of models, there or not; None means every model of the registry.

        Raises:
            RegistryError: the registry cannot be read.
        """
        models = self._stored_models(names)
        return {
            name: self._stamp(name, models.get(name, ModelEntries()))
            for name in (models if names is None else names)
        }

    @abstractmethod
    def delete(self, name: str, number: int) -> None:
        """Remove a version; its number is never used again.

        Raises:
            ModelNotFoundError: there is no such version.
            InvalidInputError: an alias points to it.
            RegistryError: the registry cannot be written to.
        """

    def _stored_models(self, names: Iterable[str] | None) -> dict[str, ModelEntries]:
        """Models as the store has them now: all, or at least those of some names."""
        models: dict[str, ModelEntries] = {}
        for name in [""] if names is None else names:
            models |= self._stored.entries(name)
        return models

    def _stamp(self, name: str, model: ModelEntries) -> ModelStamp:
        tag = model.alias_tag
        if tag is None:  # the listing does not tell it
            try:
                found = self._store.read(f"{name}/{ALIASES_FILE}")
                tag = "" if found is None else found.tag
            except RegistryError:  # of this model alone; whoever looks again is told why
                tag = f"unreadable at {time.monotonic_ns()}"
        return ModelStamp(tuple(model.versions), tag)

    def _update_aliases(
        self, name: str, change: Callable[[dict[str, int]], dict[str, int]], *, replace_damaged: bool = False
    ) -> dict[str, int]:
        """Change a model's aliases, on top of whatever others changed; return what was there before.

        `change` is called again if somebody else was faster. Damaged aliases are replaced if that is wanted.
        """
        store, key = require_writable(self._store), f"{name}/{ALIASES_FILE}"
        for attempt in range(_MAX_ALIAS_ATTEMPTS):
            current = store.read(key)
            aliases: dict[str, int] = {}
            try:
                aliases = self._parse_aliases(name, current)
            except ManifestError:
                if not replace_damaged:
                    raise
            content = format_aliases(change(aliases))
            if store.put_if_match(key, content, current and current.tag):
                return aliases
            time.sleep(_ALIAS_RETRY_PAUSE_S * random.random() * min(attempt + 1, 10))
        raise RegistryError(
            f"{self._path_of(key)} was changed by others {_MAX_ALIAS_ATTEMPTS} times in a row: try again"
        )

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
