"""Standard streams as bytes, and messages about bad items of a file."""

import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar

import typer

from models.errors import InputError

MAX_SHOWN = 20
"""Maximum printed messages; further ones are only counted."""
_PEEKED_BYTES = 1 << 16
T = TypeVar("T")


def good_items(items: Iterable[T | str], file: str, *, rest: str, none_good: Exception) -> Iterator[T]:
    """Yield good items; print bad ones' messages to standard error, the first individually.

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


def open_source(file: str) -> Path | BufferedReader:
    """Return a file's path, or the stream, always the same, of a pipe or standard input (`-`)."""
    if file != "-" and not (path := Path(file)).is_fifo():
        return path
    return _open_stream(file, sys.stdin)


@lru_cache(maxsize=1)  # what was read to detect a format is read again
def _open_stream(file: str, stdin: TextIO | None) -> BufferedReader:
    stream: Any = binary_stream(stdin, "input") if file == "-" else FileIO(file)
    return stream if isinstance(stream, BufferedReader) else BufferedReader(stream, _PEEKED_BYTES)


def open_target(file: str) -> Path | BinaryIO:
    """Return the path of a file to write, or standard output (`-`)."""
    return binary_stream(sys.stdout, "output") if file == "-" else Path(file)


def binary_stream(stream: TextIO | None, name: str) -> BinaryIO:
    """Return a standard stream as a binary stream.

    Raises:
        InputError: the stream is closed.
    """
    if stream is None:
        raise InputError(f"standard {name} is closed; name a file instead of -")
    return stream.buffer
