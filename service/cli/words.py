"""Texts and lists of words that commands read from files."""

from pathlib import Path
from typing import NamedTuple

from models.errors import FormatError


class WeightedWord(NamedTuple):
    """An entry of a dictionary, and as how many occurrences it counts."""

    text: str
    weight: float


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        FormatError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is 0x{error.object[error.start]:02x} ({error.reason})"
        raise FormatError(path, f"is not UTF-8: {wrong}", hint="convert it, for example with iconv") from None
    except OSError as error:
        raise FormatError(path, f"cannot be read: {error.strerror or error}") from None


def read_words(path: Path) -> list[str]:
    """A file's words, a line each; empty lines are passed over.

    Raises:
        FormatError: as of `read_text`.
    """
    return [word for line in read_text(path).split("\n") if (word := line.strip())]


def read_dictionary(path: Path) -> list[WeightedWord]:
    """A file's words, each with its weight after a tab, or 1.

    Raises:
        FormatError: as of `read_text`, or a weight is no number.
    """
    entries = []
    for number, line in enumerate(read_words(path), 1):
        word, tab, weight = line.partition("\t")
        try:
            entries.append(WeightedWord(word.rstrip(), float(weight) if tab else 1.0))
        except ValueError:
            raise FormatError(
                path,
                f"entry {number}: the weight is {weight!r}, it must be a number",
                hint="word, tab, weight",
            ) from None
    return entries
