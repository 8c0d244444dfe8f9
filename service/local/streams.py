"""Standard streams as bytes, and messages about bad items of a file."""

from collections.abc import Iterable, Iterator
from typing import BinaryIO, TextIO, TypeVar

import typer

from models.errors import InvalidInputError

T = TypeVar("T")
MAX_SHOWN = 20
"""Maximum number of printed messages; further ones are only counted."""


def good_items(items: Iterable[T | str], file: str, *, rest: str, none_good: Exception) -> Iterator[T]:
    """Yield good items; print the messages of bad ones to standard error, the first ones individually.

    Args:
        items: good items, and messages of bad ones.
        file: name of the file, for the number of unprinted messages.
        rest: description of the unprinted ones, such as `more bad lines`.
        none_good: error if there are only messages.
    """
    num_bad, any_good = 0, False
    for item in items:
        if not isinstance(item, str):
            any_good = True
            yield item
            continue
        num_bad += 1
        if num_bad <= MAX_SHOWN:
            typer.echo(f"gramophone: {item}", err=True)
    if num_bad > MAX_SHOWN:
        typer.echo(f"gramophone: {file}: {num_bad - MAX_SHOWN:,} {rest}", err=True)
    if num_bad and not any_good:
        raise none_good


def binary_stream(stream: TextIO | None, name: str) -> BinaryIO:
    """Return a standard stream as a binary stream.

    Raises:
        InvalidInputError: the stream is closed.
    """
    if stream is None:
        raise InvalidInputError(f"standard {name} is closed; name a file instead of -")
    return stream.buffer
