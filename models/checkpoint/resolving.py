"""What an address means among the versions and aliases there are."""

from typing import Protocol

from models.checkpoint.versions import (
    CHAMPION,
    MAX_NAME_LENGTH,
    Version,
    is_name,
    is_version_number,
    unknown_alias_error,
)
from models.errors import InvalidInputError, ModelNotFoundError


class Catalogue(Protocol):
    """Which versions and aliases there are; `Registry` says more of each."""

    @property
    def location(self) -> str:
        """What messages call it."""
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
