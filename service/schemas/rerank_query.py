"""The settings of POST /v1/rerank where the body is a stream of lists: in the query string, as on the command line."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from models.errors import InvalidInputError
from service.schemas.rerank import RerankSettings
from service.schemas.wire import invalid_input


def read_rerank_query(query: Mapping[str, str]) -> RerankSettings:
    """The settings that a query string holds.

    `weights=lm=0.5,am=1`, `mixture=ngram=0.3,lstm=0.7` and `models=old=small@3` are written as pairs; all others as
    they are.

    Raises:
        InvalidInputError: one is unknown or wrong.
    """
    read: dict[str, Any] = dict(query)
    if "weights" in read:
        read["weights"] = parse_weights(read["weights"], parameter="weights")
    if "mixture" in read:
        parts = parse_weights(read["mixture"], parameter="mixture")
        read["mixture"] = [{"model": model, "weight": weight} for model, weight in parts.items()]
    if "models" in read:
        named = parse_names(read["models"], parameter="models")
        read["models"] = [{"name": name, "model": model} for name, model in named.items()]
    try:
        return RerankSettings.model_validate(read, strict=False)
    except ValidationError as error:
        raise invalid_input(error) from None


def parse_weights(text: str, *, parameter: str) -> dict[str, float]:
    """`lm=0.7,am=1` as a mapping.

    Raises:
        InvalidInputError: a part is not NAME=NUMBER.
    """
    read = {}
    for name, value in parse_names(text, parameter=parameter).items():
        try:
            read[name] = float(value)
        except ValueError:
            raise InvalidInputError(
                f"{parameter} takes NAME=NUMBER,…, given {f'{name}={value}'!r}", parameter=parameter
            ) from None
    return read


def parse_names(text: str, *, parameter: str) -> dict[str, str]:
    """`old=small@3,new=lstm` as a mapping.

    Raises:
        InvalidInputError: a part is not NAME=VALUE, or a name comes twice.
    """
    read: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise InvalidInputError(
                f"{parameter} takes NAME=VALUE,…, given {part.strip()[:80]!r}", parameter=parameter
            )
        if name in read:
            raise InvalidInputError(f"{parameter} has {name[:80]!r} twice", parameter=parameter)
        read[name] = value
    return read
