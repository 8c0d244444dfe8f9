"""Where words begin and end in a text that is spelled in bytes, piece by piece.

A word is a run of word characters: letters, digits, combining marks, the underscore, and an apostrophe or a
hyphen between two of those. It ends where another character comes. Bytes that are not UTF-8 are read as
U+FFFD, as everywhere, which is in no word; a character whose bytes are not complete leaves all open.
"""

import codecs
import unicodedata
from typing import NamedTuple

JOINERS = "'\u2019-"
"""What joins word characters: "don't", "well-known"."""


def is_word_character(character: str) -> bool:
    """Whether a character may stand anywhere in a word; joiners may not."""
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")


_JOINER_BYTES = frozenset(joiner.encode() for joiner in JOINERS)


def is_joiner(spelled: bytes) -> bool:
    """Whether some bytes are a joiner."""
    return spelled in _JOINER_BYTES


MAX_WORD_RUN = 64
"""Characters of a run that are taken for the beginning of one word."""


class WordState(NamedTuple):
    """A place in a text, as far as words go.

    Attributes:
        begun: whether the current word has a character.
        pending: bytes after its last sure character: a joiner, an incomplete character, or both.
    """

    begun: bool = False
    pending: bytes = b""


class WordScan(NamedTuple):
    """What some bytes are to the words of a text.

    Attributes:
        ends: where words end, in bytes from where the pending bytes before these begin. Words are told as
            long as a single space stands between two.
        word_state: where the text goes on; None if no word goes on or begins there.
    """

    ends: tuple[int, ...]
    word_state: WordState | None


def scan_words(place: WordState, spelled: bytes) -> WordScan:
    """Read some more bytes of a text."""
    raw = place.pending + spelled
    text, _ = codecs.utf_8_decode(raw, "replace", False)  # noqa: FBT003 - takes no names
    begun, joined = place.begun, False
    sure = at = 0  # bytes up to the word's last sure character, and up to here
    ends: list[int] = []
    for character in text:
        at += len(character.encode())
        if is_word_character(character):
            begun, joined, sure = True, False, at
        elif begun and not joined and character in JOINERS:
            joined = True
        else:
            if not begun:
                return WordScan(tuple(ends), None)
            ends.append(sure)
            if joined or character != " ":
                return WordScan(tuple(ends), None)
            begun, sure = False, at
    return WordScan(tuple(ends), WordState(begun, raw[sure:]))


def last_word_start(text: str) -> int:
    """Where the word begins in which a text ends; the text's length if it ends in none.

    A joiner after a word character may be within a word yet, so it belongs to the last one. Of a run of more than
    `LONGEST` characters, as scripts without spaces have, the last so many are taken.
    """
    at = len(text)
    least = max(at - MAX_WORD_RUN, 0)
    while at > least and (is_word_character(text[at - 1]) or _may_join(text, at - 1)):
        at -= 1
    return at + 1 if at < len(text) and text[at] in JOINERS else at  # only where a run was cut


def _may_join(text: str, at: int) -> bool:
    """Whether the character there may join the one before it to what comes after."""
    return text[at] in JOINERS and at > 0 and is_word_character(text[at - 1])
