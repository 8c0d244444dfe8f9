"""What words in lattices mean: those that are none, and Kaldi's numbers."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from models.errors import FormatError, InvalidInputError

NON_WORD_LABELS = frozenset({"!NULL", "!ENTER", "!EXIT", "!SENT_START", "!SENT_END", "<s>", "</s>", "<eps>"})
"""Labels without a word: what HTK and Kaldi write on arcs that only hold the graph together, and sentence ends."""

_BACKOFF_SYMBOL = "#0"
_MOST_DIGITS = 18


class SymbolTable(NamedTuple):
    """Kaldi's words.txt: words and their numbers.

    Attributes:
        words: by number.
        ids: by word.
    """

    words: Mapping[int, str]
    ids: Mapping[str, int]


def read_symbols(lines: Iterable[bytes], source: str) -> SymbolTable:
    """Read a symbol table: a word and its number on each line.

    Args:
        lines: of the file.
        source: its name, for messages.

    Raises:
        FormatError: a line is something else, or a word or number is there twice.
    """
    words: dict[int, str] = {}
    ids: dict[str, int] = {}
    for line_number, line in enumerate(lines, start=1):
        place = f"{source}:{line_number}"
        try:
            fields = decode_line(line).split()
        except InvalidInputError as error:
            raise FormatError(place, str(error)) from None
        if not fields:
            continue
        if len(fields) != 2 or not is_whole_number(fields[1]):
            raise FormatError(place, "is no word and number", hint="give Kaldi's words.txt")
        word, number = fields[0], int(fields[1])
        if word in ids or number in words:
            raise FormatError(place, f"{word if word in ids else number} is there a second time")
        words[number], ids[word] = word, number
    return SymbolTable(words, ids)


def decode_line(line: bytes) -> str:
    """A line of a text file.

    Raises:
        InvalidInputError: it is not UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InvalidInputError("is not UTF-8: convert it first, for example with iconv") from None


def is_whole_number(text: str) -> bool:
    """Whether a text is the number of a word or a state, which 64 bits hold."""
    return len(text) <= _MOST_DIGITS and text.isdecimal()


def word_of_label(label: str, no_words: Collection[str]) -> str:
    """The word of a label; empty if it stands for none.

    Args:
        label: as the file has it.
        no_words: labels that stand for no word.

    Raises:
        InvalidInputError: it cannot be a word.
    """
    if label in no_words:
        return ""
    if len(label.split()) != 1 or label.strip() != label:
        raise InvalidInputError(f"the word {label!r} is empty or has white space in it")
    if label == _BACKOFF_SYMBOL:
        raise InvalidInputError(
            f"{label} is a back-off symbol of the decoding graph; remove it from the lattices first"
        )
    return label
