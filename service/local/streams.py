"""Standard streams as bytes, and warnings about single lines of a file."""

from typing import BinaryIO, TextIO

import typer

from models.errors import InvalidInputError

MAX_SHOWN = 20
"""Maximum number of printed warnings; further ones are only counted."""


class LineWarnings:
    """Counter of warnings that prints the first ones.

    Attributes:
        count: number of warnings.
    """

    def __init__(self) -> None:
        self.count = 0

    def warn(self, message: str) -> None:
        """Count a warning, and print it unless `MAX_SHOWN` were printed."""
        self.count += 1
        if self.count <= MAX_SHOWN:
            typer.echo(f"gramophone: {message}", err=True)

    def warn_rest(self, file: str, what: str) -> None:
        """Print the number of unprinted warnings; `what` describes them, such as `more bad lines`."""
        if self.count > MAX_SHOWN:
            typer.echo(f"gramophone: {file}: {self.count - MAX_SHOWN:,} {what}", err=True)


def binary_stream(stream: TextIO | None, name: str) -> BinaryIO:
    """Return a standard stream as a binary stream.

    Raises:
        InvalidInputError: the stream is closed.
    """
    if stream is None:
        raise InvalidInputError(f"standard {name} is closed; name a file instead of -")
    return stream.buffer
