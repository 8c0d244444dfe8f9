"""Profiles of re-ranking in a registry: `<root>/.profiles/<name>.json`."""

from pathlib import Path

from models.checkpoint.documents import DocumentStore
from models.checkpoint.manifest import check_name
from models.errors import InvalidInputError
from models.reranking.ranking import Profile


class ProfileStore(DocumentStore[Profile]):
    """Profiles of a registry; see `DocumentStore` for errors."""

    folder, _kind, _what = ".profiles", Profile, "profile"
    _hint, _name = "tune and save it again", "name"

    def read(self, name: str) -> Profile:
        """Read a profile.

        Raises:
            InvalidInputError: it does not exist; the message lists the existing profiles.
        """
        check_name(name, parameter="profile")
        profile = self._find(name)
        if profile is None:
            raise self._unknown(name)
        return profile

    def write(self, profile: Profile) -> str | Path:
        """Store a profile, replacing one with the same name; return its path or URL.

        Raises:
            InvalidInputError: its name cannot be a file name, or it is too large.
        """
        check_name(profile.name, parameter="profile")
        return self._put(profile.name, profile)

    def delete(self, name: str) -> None:
        """Remove a profile.

        Raises:
            InvalidInputError: it does not exist.
        """
        check_name(name, parameter="profile")
        if not self._delete(name):
            raise self._unknown(name)

    def _unknown(self, name: str) -> InvalidInputError:
        known = ", ".join(self.names()) or "none"
        return InvalidInputError(f"there is no profile {name!r}; profiles: {known}", parameter="profile")
