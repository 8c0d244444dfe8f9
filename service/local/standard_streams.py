"""Standard input and output of a command, as bytes."""

from typing import BinaryIO, TextIO

from models.errors import InvalidInputError


def binary_stream(stream: TextIO | None, name: str) -> BinaryIO:
    """A standard stream as bytes.

    Raises:
        InvalidInputError: it is closed.
    """
    if stream is None:
        raise InvalidInputError(f"standard {name} is closed; name a file instead of -")
    return stream.buffer
