"""In which precision each model is to compute, as the settings say it."""

from collections.abc import Mapping
from typing import NamedTuple

from models.checkpoint.precision import Precision, check_precision
from models.checkpoint.registry import Registry
from models.checkpoint.versions import Version
from models.errors import CheckpointError, InvalidInputError, ModelNotFoundError


class Precisions(NamedTuple):
    """One precision for all models, and others for some.

    Attributes:
        common: of models that are not named.
        named: of some, by name or by `name@number`.
    """

    common: Precision
    named: Mapping[str, Precision]

    def of(self, version: Version) -> Precision:
        """That of one version; what is said of the version goes before what is said of the model."""
        return self.named.get(version.address, self.named.get(version.name, self.common))

    def check_names(self, registry: Registry) -> None:
        """Refuse a precision of a model that is not there, as it is misspelt, and of an alias, which counts for none.

        Raises:
            InvalidInputError: it is of the one or the other.
            RegistryError: the registry cannot be read.
        """
        for address in self.named:
            try:
                version = registry.resolve(address)
            except ModelNotFoundError as error:
                raise InvalidInputError(
                    f"precision names {address!r}: {error}", parameter="precision"
                ) from None
            except CheckpointError:
                continue  # it is there; what is wrong with it is told when it is to be loaded
            if address not in {version.name, version.address}:
                raise InvalidInputError(
                    f"precision names {address!r}; name the model, {version.name}, or a version of it by its number, "
                    f"such as {version.address}",
                    parameter="precision",
                )


def read_precisions(text: str) -> Precisions:
    """Read `int8`, or `lstm=int8,gru@3=float32`, or `int8,gru=float32`; models not named are `auto`, or the first.

    Raises:
        InvalidInputError: a part is no precision, or two parts speak of the same models.
    """
    common: Precision | None = None
    named: dict[str, Precision] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.rpartition("="))
        precision = check_precision(value)
        if name in named or (not equals and common is not None) or (equals and not name):
            raise InvalidInputError(
                f"precision is {text!r}: {part.strip()!r} says again what was said, or names no model",
                parameter="precision",
            )
        if equals:
            named[name] = precision
        else:
            common = precision
    return Precisions(common or "auto", named)
