"""Profiles of weights beside the models of a registry.

<root>/.profiles/<name>.json    visible once its file has this name
<root>/.profiles/.tmp-…         one being written; ignored by readers
"""

import contextlib
import os
import uuid
from pathlib import Path

from models.checkpoint.registry import Stamp, check_name
from models.errors import FormatError, InvalidInputError, RegistryError
from models.reranking.profiles import Profile, parse_profile

FOLDER = ".profiles"
_SUFFIX = ".json"
_MAX_BYTES = 1 << 20


class ProfileStore:
    """The profiles of a registry.

    Args:
        registry: its folder; profiles need no model in it.
    """

    def __init__(self, registry: Path) -> None:
        self._folder = registry / FOLDER

    def names(self) -> list[str]:
        """What profiles there are, sorted.

        Raises:
            RegistryError: the folder cannot be read.
        """
        try:
            names = (path.name for path in self._folder.iterdir())
            return sorted(
                name.removesuffix(_SUFFIX)
                for name in names
                if name.endswith(_SUFFIX) and not name.startswith(".")
            )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RegistryError(f"cannot read {self._folder}: {error.strerror}") from None

    def read(self, name: str) -> Profile:
        """A profile.

        Raises:
            InvalidInputError: there is none of that name; the message lists what there is.
            FormatError: its file is damaged.
            RegistryError: it cannot be read.
        """
        check_name(name, parameter="profile")
        path = self._path(name)
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            raise self._unknown(name) from None
        except OSError as error:
            raise RegistryError(f"cannot read {path}: {error.strerror}") from None
        if len(content) > _MAX_BYTES:
            raise FormatError(path, f"has more than {_MAX_BYTES} bytes: no profile")
        try:
            profile = parse_profile(content)
        except InvalidInputError as error:
            raise FormatError(path, f"is no profile: {error}", hint="tune again and save it") from None
        if profile.name != name:
            raise FormatError(path, f"is the profile {profile.name!r}, not {name!r}")
        return profile

    def write(self, profile: Profile) -> Path:
        """Store a profile, by one rename; one of the same name is replaced.

        Raises:
            InvalidInputError: its name cannot be a file's, or it is too large.
            RegistryError: the file system refused.
        """
        check_name(profile.name, parameter="profile")
        content = profile.model_dump_json(indent=1).encode() + b"\n"
        if len(content) > _MAX_BYTES:
            raise InvalidInputError(
                f"the profile has {len(content)} bytes; at most {_MAX_BYTES} are kept", parameter="profile"
            )
        path = self._path(profile.name)
        temporary = self._folder / f".tmp-{uuid.uuid4().hex}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise RegistryError(f"cannot write to {self._folder}: {error.strerror}") from error
        return path

    def delete(self, name: str) -> None:
        """Remove a profile.

        Raises:
            InvalidInputError: there is none of that name.
            RegistryError: the file system refused.
        """
        check_name(name, parameter="profile")
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            raise self._unknown(name) from None
        except OSError as error:
            raise RegistryError(f"cannot remove {self._path(name)}: {error.strerror}") from None

    def stamp(self, name: str) -> Stamp:
        """What tells cheaply that a profile has changed; nothing is read.

        Raises:
            InvalidInputError: there is none of that name.
        """
        check_name(name, parameter="profile")
        try:
            found = self._path(name).stat()
        except OSError:
            raise self._unknown(name) from None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"

    def _unknown(self, name: str) -> InvalidInputError:
        known = ", ".join(self.names()) or "none"
        return InvalidInputError(f"there is no profile {name!r}; there are: {known}", parameter="profile")
