"""The default: which model answers requests that name none. A registry with several remembers one.

    <root>/.default    its name; written before a second name is published, and by `gramophone models default`

So another name never changes what is served; a service writes nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from models.checkpoint.versions import is_name

DEFAULT_FILE = ".default"
PREFERRED_DEFAULT = "mixture"
_DEFAULT_HINT = "choose one with `gramophone models default NAME` or GRAMOPHONE_DEFAULT_MODEL"


class DefaultChoice(NamedTuple):
    """The default among some models.

    Attributes:
        name: its name.
        reason: why it is that one.
        is_guess: whether nobody has said so, and others are there.
    """

    name: str
    reason: str
    is_guess: bool = False


def choose_default(names: Sequence[str], remembered: str | None) -> DefaultChoice:
    """The default among names, of which there is one at least.

    Args:
        names: of models, sorted.
        remembered: what the registry remembers.
    """
    if remembered is not None and remembered in names:
        return DefaultChoice(remembered, "it is set as the registry's default")
    if len(names) == 1:
        return DefaultChoice(names[0], "it is the only model")
    name, reason = names[0], "this is the first name in the alphabet"
    if PREFERRED_DEFAULT in names:
        name, reason = PREFERRED_DEFAULT, "a model of this name is preferred"
    missing = (
        "no default was chosen" if remembered is None else f"the chosen default {remembered!r} is not here"
    )
    return DefaultChoice(name, f"{missing}, and {reason}: {_DEFAULT_HINT}", is_guess=True)


def parse_default(content: bytes | None) -> str | None:
    """The name in a registry's file; None if there is no file, or no name in it."""
    name = (content or b"").decode("utf-8-sig", errors="replace").strip()
    return name if is_name(name) else None


def format_default(name: str) -> bytes:
    """What the file holds."""
    return f"{name}\n".encode()
