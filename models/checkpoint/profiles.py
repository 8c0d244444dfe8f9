"""Profiles of weights beside the models of a registry: `.profiles/<name>.json`."""

from pathlib import Path

from models.checkpoint.documents import MAX_DOCUMENT_BYTES, open_document_store
from models.checkpoint.registry import Address
from models.checkpoint.versions import check_name
from models.errors import FormatError, InvalidInputError
from models.reranking.profiles import Profile, parse_profile

PROFILES_FOLDER = ".profiles"
_SUFFIX = ".json"


class ProfileStore:
    """The profiles of a registry.

    Args:
        registry: its address; profiles need no model in it.

    Raises:
        RegistryError: it is remote and needs a package that is not installed.
    """

    def __init__(self, registry: Address) -> None:
        self._documents = open_document_store(registry, PROFILES_FOLDER)

    def names(self) -> list[str]:
        """What profiles there are, sorted.

        Raises:
            RegistryError: they cannot be listed.
        """
        return sorted(
            name.removesuffix(_SUFFIX)
            for name in self._documents.names()
            if name.endswith(_SUFFIX) and not name.startswith(".")
        )

    def read(self, name: str) -> Profile:
        """A profile.

        Raises:
            InvalidInputError: there is none of that name; the message lists what there is.
            FormatError: its file is damaged.
            RegistryError: it cannot be read.
        """
        check_name(name, parameter="profile")
        content = self._documents.read(name + _SUFFIX)
        if content is None:
            raise self._unknown(name)
        path = self._documents.display_path(name + _SUFFIX)
        if len(content) > MAX_DOCUMENT_BYTES:
            raise FormatError(path, f"has more than {MAX_DOCUMENT_BYTES} bytes: no profile")
        try:
            profile = parse_profile(content)
        except InvalidInputError as error:
            raise FormatError(path, f"is no profile: {error}", hint="tune again and save it") from None
        if profile.name != name:
            raise FormatError(path, f"is the profile {profile.name!r}, not {name!r}")
        return profile

    def write(self, profile: Profile) -> str | Path:
        """Store a profile; one of the same name is replaced.

        Returns:
            Where it lies now.

        Raises:
            InvalidInputError: its name cannot be a file's, or it is too large.
            RegistryError: the registry cannot be written to.
        """
        check_name(profile.name, parameter="profile")
        content = profile.model_dump_json(indent=1).encode() + b"\n"
        if len(content) > MAX_DOCUMENT_BYTES:
            raise InvalidInputError(
                f"the profile has {len(content)} bytes; at most {MAX_DOCUMENT_BYTES} are kept",
                parameter="profile",
            )
        self._documents.write(profile.name + _SUFFIX, content)
        return self._documents.display_path(profile.name + _SUFFIX)

    def delete(self, name: str) -> None:
        """Remove a profile.

        Raises:
            InvalidInputError: there is none of that name.
            RegistryError: the registry cannot be written to.
        """
        check_name(name, parameter="profile")
        if not self._documents.delete(name + _SUFFIX):
            raise self._unknown(name)

    def _unknown(self, name: str) -> InvalidInputError:
        known = ", ".join(self.names()) or "none"
        return InvalidInputError(f"there is no profile {name!r}; there are: {known}", parameter="profile")
