"""What is last known of a remote registry, kept on disk for when it is out of reach.

<root>/<model>/versions.json    [1, 2, 7]
<root>/<model>/aliases.json     as the registry has it
<root>/.default                 as the registry has it
"""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from models.checkpoint.default_name import DEFAULT_FILE
from models.checkpoint.folders import replace_file
from models.checkpoint.versions import ALIASES_FILE, Version, is_name, parse_aliases

_VERSIONS_FILE = "versions.json"


class CachedCatalogue:
    """The versions and aliases last seen: a `Catalogue` that asks nobody.

    Args:
        root: the folder for one registry; there or not.
        location: the registry's, for messages.
    """

    def __init__(self, root: Path, location: str) -> None:
        self.root = root
        self.location = location

    def models(self) -> list[str]:
        """Names of the models with at least one version, sorted."""
        try:
            names = sorted(path.name for path in self.root.iterdir() if is_name(path.name))
        except OSError:
            return []
        return [name for name in names if self.versions(name)]

    def versions(self, name: str) -> list[int]:
        """A model's version numbers, ascending; none if nothing is known of it."""
        try:
            numbers = json.loads((self.root / name / _VERSIONS_FILE).read_bytes())
        except (OSError, ValueError, RecursionError):
            return []
        is_list = isinstance(numbers, list) and all(type(number) is int for number in numbers)
        return numbers if is_list else []

    def aliases(self, name: str) -> dict[str, int]:
        """A model's aliases.

        Raises:
            ManifestError: they were damaged when they were last seen.
        """
        path = self.root / name / ALIASES_FILE
        try:
            content = path.read_bytes()
        except OSError:
            return {}
        return parse_aliases(content, path)

    def default(self) -> bytes:
        """What the registry's file of the default held; nothing if there was none."""
        try:
            return (self.root / DEFAULT_FILE).read_bytes()
        except OSError:
            return b""

    def version(self, name: str, number: int) -> Version:
        """The version of this number, and the folder where it is laid."""
        return Version(name, number, self.root / name / "versions" / str(number))

    def remember_all(self, versions: dict[str, list[int]]) -> None:
        """Take note of all models and versions there are."""
        for name in self.models():
            if name not in versions:
                self.remember_versions(name, [])
        for name, numbers in versions.items():
            self.remember_versions(name, numbers)

    def remember_versions(self, name: str, numbers: Iterable[int]) -> None:
        """Take note of a model's versions."""
        self._replace(self.root / name / _VERSIONS_FILE, json.dumps(list(numbers)).encode())

    def remember_aliases(self, name: str, content: bytes | None) -> None:
        """Take note of a model's `aliases.json`; None if there is none."""
        path = self.root / name / ALIASES_FILE
        if content is not None:
            self._replace(path, content)
        else:
            with contextlib.suppress(OSError):
                path.unlink()

    def remember_default(self, content: bytes) -> None:
        """Take note of the registry's file of the default; nothing if there is none."""
        self._replace(self.root / DEFAULT_FILE, content)

    @staticmethod
    def _replace(path: Path, content: bytes) -> None:
        """Write what has changed. A full disk is no reason not to answer: then only less is known later."""
        with contextlib.suppress(OSError):
            if not path.exists() or path.read_bytes() != content:
                replace_file(path, content)
