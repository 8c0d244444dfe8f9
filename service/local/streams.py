"""Standard input and output as bytes, and warnings about single lines of a file."""

from typing import BinaryIO, TextIO

import typer

from models.errors import InvalidInputError

MAX_SHOWN = 20
"""Complaints told one by one; of more their number is told."""


class LineWarnings:
    """Counts them, and tells the first ones.

    Attributes:
        count: how many there were.
    """

    def __init__(self) -> None:
        self.count = 0

    def warn(self, message: str) -> None:
        """Tell one more, unless there were too many."""
        self.count += 1
        if self.count <= MAX_SHOWN:
            typer.echo(f"gramophone: {message}", err=True)

    def warn_rest(self, file: str, what: str) -> None:
        """Tell how many were not told, such as `more bad lines` of a file."""
        if self.count > MAX_SHOWN:
            typer.echo(f"gramophone: {file}: {self.count - MAX_SHOWN:,} {what}", err=True)


def binary_stream(stream: TextIO | None, name: str) -> BinaryIO:
    """A standard stream as bytes.

    Raises:
        InvalidInputError: it is closed.
    """
    if stream is None:
        raise InvalidInputError(f"standard {name} is closed; name a file instead of -")
    return stream.buffer
