"""Interface of model registries: immutable, numbered versions and movable aliases."""

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
    format_json,
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
from models.errors import InputError, ManifestError, ModelNotFoundError, RegistryError

_QUOTED_URL = re.compile(r""""[a-z][a-z0-9+.-]*://[^"]*"|'[a-z][a-z0-9+.-]*://[^']*'""", re.IGNORECASE)
_ACCOUNT = re.compile(r"\barn:[^\s,;]+")
_MAX_ALIAS_ATTEMPTS = 40
_ALIAS_RETRY_PAUSE_S = 0.02


class ModelSnapshot(NamedTuple):
    """Versions and aliases of a model at one point in time.

    Attributes:
        aliases: the aliases.
        stamp: the versions, and the value of `Registry.change_stamps` until something changes.
    """

    aliases: dict[str, int]
    stamp: ModelStamp


class Catalogue:
    """Versions and aliases of the models in a store, by its listing.

    All methods raise RegistryError if the registry cannot be read, or no longer exists.

    Args:
        store: store to read.
        folder: local folder of the versions.

    Attributes:
        location: folder or URL, for messages.
        work_folder: local folder of versions and unpublished files, such as resumable training runs.
    """

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._reads = store
        self.location, self.work_folder = store.location, folder

    def entries(self, folder: str = "") -> dict[str, ModelEntries]:
        """Return models by name, with or without versions: all, or those in a folder."""
        return list_models(self._reads.entries(folder))

    def models(self) -> list[str]:
        """Return the sorted names of models with at least one version."""
        return sorted(name for name, model in self.entries().items() if model.versions)

    def versions(self, name: str) -> list[int]:
        """Return a model's version numbers, ascending; empty if the model does not exist."""
        return self.entries(name).get(name, ModelEntries()).versions if is_name(name) else []

    def aliases(self, name: str) -> dict[str, int]:
        """Return a model's aliases.

        Raises:
            ManifestError: aliases.json is damaged.
        """
        return self._parse_aliases(name, self._reads.read(f"{name}/{ALIASES_FILE}"))

    def default(self) -> str | None:
        """Return the stored name of the default model, which may not exist, or None."""
        found = self._reads.read(DEFAULT_FILE)
        name = "" if found is None else found.content.decode("utf-8-sig", errors="replace").strip()
        return name if is_name(name) else None

    def published(self) -> list[Version]:
        """Return every version of every model."""
        models = sorted(self.entries().items())
        return [self.version(name, number) for name, model in models for number in model.versions]

    def version(self, name: str, number: int) -> Version:
        """Return the version with this number, which may not exist."""
        return Version(name, number, self.work_folder / name / "versions" / str(number))

    def resolve(self, address: str, seen: ModelSnapshot | None = None) -> Version:
        """Resolve `name`, `name@7` or `name@champion` to a version.

        A bare name means the alias `champion`, else the newest version.

        Args:
            address: the address.
            seen: snapshot of the model; None reads the registry.

        Raises:
            InputError: the part after the `@` is empty.
            ModelNotFoundError: no such model, version or alias; the message lists those that exist.
            ManifestError: aliases.json is needed and damaged.
        """
        name, at, which = address.partition("@")
        if at and not which and is_name(name):
            raise InputError(
                f"the model is {address!r}; a version number or an alias must follow the @, as in {name}@7 or "
                f"{name}@{CHAMPION}",
                param="model",
            )
        versions = self.versions(name) if seen is None else list(seen.stamp.versions)
        if not versions:
            known = ", ".join(self.models()) or "none"
            raise ModelNotFoundError(
                f"there is no model {name[:MAX_NAME_LENGTH]!r} in {self.location}; models: {known}"
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
            # since the listing, the version may have been published and got the alias
            versions = self.versions(name)
        if number not in versions:
            listed = ", ".join(map(str, versions[-10:]))
            raise ModelNotFoundError(f"model {name!r} has no version {number}; versions: {listed}")
        return self.version(name, number)

    def _parse_aliases(self, name: str, found: TaggedContent | None) -> dict[str, int]:
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
                f"{self.location}/{name}/{ALIASES_FILE} is damaged: {error}; set the alias again with "
                "`gramophone models promote`"
            ) from None
        return aliases


class Registry(Catalogue, ABC):
    """Models with immutable, numbered versions and movable aliases, in any store.

    All methods raise RegistryError if the registry cannot be read or, for changes, written.

    Args:
        store: store to write to.
        folder: local folder of the versions.
        reads: store to read from, for example a cache; None: `store`.
    """

    def __init__(self, store: ObjectStore, folder: Path, reads: ObjectStore | None = None) -> None:
        super().__init__(reads or store, folder)
        self._store = store
        self._stored = Catalogue(store, folder)

    @property
    def is_reachable(self) -> bool:
        """True if the last read came from the registry, not a cache."""
        return True

    def resolve_cached(self, address: str) -> Version:
        """Resolve like `resolve` from cached data, without a remote request.

        Raises:
            ModelNotFoundError: the model, version or alias is not in the cached data.
            ManifestError, RegistryError: the cached data cannot be read.
        """
        return self.resolve(address)

    def snapshot(self, name: str) -> ModelSnapshot:
        """Read the versions and aliases of a model once.

        Raises:
            ManifestError: aliases.json is damaged.
        """
        if not is_name(name):
            return ModelSnapshot({}, ModelStamp((), ""))
        # aliases before versions: an alias's target is published first
        found = self._reads.read(f"{name}/{ALIASES_FILE}")
        stamp = ModelStamp(tuple(self.versions(name)), "" if found is None else found.tag)
        return ModelSnapshot(self._parse_aliases(name, found), stamp)

    def location_of(self, version: Version) -> str:
        """Path or URL of a version, for messages."""
        return f"{self.location}/{version.name}/versions/{version.number}"

    @abstractmethod
    def fetch(self, version: Version) -> Path:
        """Return a version's folder with all files, downloading missing ones.

        Raises:
            CheckpointError: its files differ from the published ones.
            RegistryError: they cannot be read, or the disk is full.
        """

    @abstractmethod
    def manifest(self, version: Version) -> Manifest:
        """Read a version's manifest, without its files.

        Raises:
            CheckpointError: it is missing or damaged.
        """

    @abstractmethod
    def read_file(self, version: Version, name: str) -> bytes:
        """Read one small file of a version, such as `metrics.json`, without the others.

        Raises:
            CheckpointError: it is missing or damaged.
        """

    def publish(self, name: str, write: Callable[[Path], None]) -> Version:
        """Publish a new version.

        Args:
            name: the model; letters, digits, `.`, `_` and `-`.
            write: writes a complete checkpoint into a given folder, the manifest last.

        Raises:
            InputError: the name cannot be a folder name.
            CheckpointError: the checkpoint does not verify; nothing is published.
            RegistryError: the registry cannot be written; nothing is published.
        """
        check_name(name)
        require_writable(self._store)
        versions = self.work_folder / name / "versions"
        with report_write_errors(versions), temporary_folder(versions) as folder:
            write(folder)
            manifest = read_manifest(folder)
            verify_files(folder, manifest)
            return self._publish_folder(name, folder, manifest)

    @abstractmethod
    def _publish_folder(self, name: str, folder: Path, manifest: Manifest) -> Version:
        """Publish a verified folder, which may be renamed."""

    def set_alias(self, name: str, alias: str, number: int) -> None:
        """Point an alias at a version, atomically.

        Raises:
            ModelNotFoundError: no such version.
            InputError: the alias is not a name, or is a number.
            ManifestError: aliases.json is damaged (it is replaced if `alias` is the champion).
        """
        if alias.isdecimal():
            raise InputError(f"the alias {alias!r} would read as a version number", param="alias")
        check_name(alias, param="alias")
        require_writable(self._store)
        self.resolve(f"{name}@{number}")
        before = self._point_alias(name, alias, number)
        if number not in self._stored.versions(name):
            # deleted by another process, which checks the aliases only afterwards
            self._point_alias(name, alias, before.get(alias))
            raise ModelNotFoundError(f"model {name!r} has no version {number}: it was deleted just now")

    def delete_alias(self, name: str, alias: str) -> int:
        """Remove an alias, atomically.

        Returns:
            Number of the version that it pointed to.

        Raises:
            ModelNotFoundError: no such model or alias.
            ManifestError: aliases.json is damaged.
        """
        require_writable(self._store)
        self.resolve(name)
        before = self._point_alias(name, alias, None)
        if alias not in before:
            raise unknown_alias_error(name, alias, before)
        return before[alias]

    def set_default(self, name: str) -> None:
        """Store the name of the model for requests that name none, atomically.

        Raises:
            ModelNotFoundError: no such model.
        """
        self.resolve(name)
        require_writable(self._store).put(DEFAULT_FILE, f"{name}\n".encode())

    def pin_default(self, coming: str) -> None:
        """Store the current default, if not stored, before a new name is published."""
        names = self.models()
        if names and coming not in names and self.default() not in names:
            self.set_default(choose_default(names, None).name)

    @abstractmethod
    def sweep(self, *, older_than_s: float) -> int:
        """Remove files left by interrupted publishers and deleted versions.

        Args:
            older_than_s: minimum age; younger files may be those of a running publisher.

        Returns:
            Number of removed files or folders.
        """

    def change_stamps(self, names: Iterable[str] | None = None) -> dict[str, ModelStamp]:
        """Return cheap fingerprints of versions and aliases, to detect changes.

        Args:
            names: names of models, existing or not; None: all models of the registry.
        """
        models, stamps = self._stored_models(names), dict[str, ModelStamp]()
        for name in models if names is None else names:
            model = models.get(name, ModelEntries())
            tag = model.alias_tag
            if tag is None:  # not in the listing
                try:
                    found = self._store.read(f"{name}/{ALIASES_FILE}")
                    tag = "" if found is None else found.tag
                except RegistryError:  # affects only this model; a later read reports the error
                    tag = f"unreadable at {time.monotonic_ns()}"
            stamps[name] = ModelStamp(tuple(model.versions), tag)
        return stamps

    @abstractmethod
    def delete(self, name: str, number: int) -> None:
        """Remove a version; its number is never used again.

        Raises:
            ModelNotFoundError: no such version.
            InputError: an alias points to it.
        """

    def _stored_models(self, names: Iterable[str] | None) -> dict[str, ModelEntries]:
        """Read models from the store: all, or at least those named."""
        models: dict[str, ModelEntries] = {}
        for name in [""] if names is None else names:
            models |= self._stored.entries(name)
        return models

    def _point_alias(self, name: str, alias: str, number: int | None) -> dict[str, int]:
        """Point an alias at a version, or at none, atomically; return the old aliases.

        It is repeated if another process was faster. A champion replaces a damaged file.
        """
        store, key = require_writable(self._store), f"{name}/{ALIASES_FILE}"
        for attempt in range(_MAX_ALIAS_ATTEMPTS):
            current = store.read(key)
            aliases: dict[str, int] = {}
            try:
                aliases = self._parse_aliases(name, current)
            except ManifestError:
                if alias != CHAMPION or number is None:
                    raise
            if number is None and alias not in aliases:
                return aliases
            changed = {**aliases, alias: number}
            content = format_json({existing: target for existing, target in changed.items() if target})
            if store.put_if_match(key, content, current and current.tag):
                return aliases
            time.sleep(_ALIAS_RETRY_PAUSE_S * random.random() * min(attempt + 1, 10))
        raise RegistryError(
            f"{self.location}/{key} was changed by other processes {_MAX_ALIAS_ATTEMPTS} times in a row; try again"
        )

    def redact_location(self, message: str) -> str:
        """Remove the registry's location from a message."""
        for path in (self.location, str(self.work_folder)):
            # as a complete path: a folder's name can be `.`, or a word of the message
            pattern = rf"(?<![\w.-]){re.escape(path)}(/|(?![\w-]))"
            message = re.sub(pattern, lambda found: "" if found[1] else "registry", message)
        return redact_accounts(message)


def redact_accounts(message: str) -> str:
    """Remove a store's URL and the refused account from its error message."""
    return _QUOTED_URL.sub("…", _ACCOUNT.sub("…", message))
