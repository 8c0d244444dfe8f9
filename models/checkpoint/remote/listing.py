"""What a listing of an object store says of the models in it."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable

from models.checkpoint.manifest import MANIFEST_FILE
from models.checkpoint.remote.object_store import ObjectEntry
from models.checkpoint.versions import ALIASES_FILE, Version, is_name, is_version_number


def manifest_key(version: Version) -> str:
    """Where a version's manifest is stored."""
    return f"{version.name}/versions/{version.number}/{MANIFEST_FILE}"


class Listing:
    """Models, versions and aliases by the keys, sizes and tags of objects.

    Args:
        entries: of the whole registry, or of some models.
    """

    def __init__(self, entries: Iterable[ObjectEntry]) -> None:
        self._manifests: dict[str, dict[int, ObjectEntry]] = defaultdict(dict)
        self._aliases: dict[str, ObjectEntry] = {}
        for entry in entries:
            match entry.key.split("/"):
                case [name, "versions", number, file] if file == MANIFEST_FILE and is_version_number(number):
                    self._manifests[name][int(number)] = entry
                case [name, file] if file == ALIASES_FILE:
                    self._aliases[name] = entry

    def names(self) -> list[str]:
        """Names that may be models', those without versions included, sorted."""
        return sorted(name for name in {*self._manifests, *self._aliases} if is_name(name))

    def models(self) -> list[str]:
        """Names of the models with at least one version, sorted."""
        return [name for name in self.names() if self.versions(name)]

    def numbers(self, name: str) -> list[int]:
        """Numbers of a model's versions, deleted ones included, ascending."""
        return sorted(self._manifests.get(name, ()))

    def versions(self, name: str) -> list[int]:
        """Numbers of a model's versions, ascending; the manifest of a deleted one is empty."""
        return [number for number in self.numbers(name) if self._manifests[name][number].num_bytes]

    def tag(self, name: str) -> str:
        """Another one means that a version has come or gone."""
        found = [(number, self._manifests[name][number].tag) for number in self.versions(name)]
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def alias_tag(self, name: str) -> str | None:
        """Another one means that the aliases have changed; None where the store does not tell."""
        entry = self._aliases.get(name)
        return "" if entry is None else entry.tag or None
