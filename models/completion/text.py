"""Word boundaries in bytes of text, and edit distances of many tokens in one pass.

Invalid UTF-8 is decoded as U+FFFD, not a word character; an incomplete character does not end the word.
Words are those of `models.words`.
"""

import codecs
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.words import FIRST_STAND_IN, JOINERS, is_word_character

MAX_LETTERS = 32
"""Maximum letters of a token that are compared."""

# the last plane has two private-use characters less than the first has characters
_LAST_REPLACED = 0xFFFD

JOINER_BYTES = frozenset(joiner.encode() for joiner in JOINERS)


class LetterTable:
    """Tokens and their letters.

    Attributes:
        ids: ids of the tokens [N].
        lengths: number of letters of each [N].
        texts: spelling of each token.
    """

    def __init__(self, ids: Sequence[int], texts: Sequence[str]) -> None:
        self.ids: TokenIds = np.array(ids, np.int64)
        self.texts = texts
        self.lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        letters = np.array(texts, f"U{MAX_LETTERS}").view(np.uint32)
        # [L, N], 0 beyond a token's end
        self._letters = np.ascontiguousarray(letters.reshape(-1, MAX_LETTERS).T)

    def distances(self, word: str, edits: int) -> npt.NDArray[np.int8]:
        """Compute edit distances between each prefix of a word and each prefix of each token.

        Edits are insertions, deletions, substitutions, transpositions: optimal string alignment (Damerau 1964).

        Args:
            word: at most `MAX_LETTERS - edits` letters, M.
            edits: maximum distance of interest; all larger ones are returned as one value above it.

        Returns:
            [M + 1, M + 1 + edits, N].
        """
        size, width = len(word), len(word) + edits
        table = np.full((size + 1, width + 1, len(self.ids)), edits + 1, np.int8)
        differs = {letter: self._letters[:width] != ord(letter) for letter in set(word)}
        for i in range(size + 1):
            for j in range(max(0, i - edits), i + edits + 1):
                cell = table[i, j]
                if not i or not j:
                    np.minimum(cell, max(i, j), out=cell)
                    continue
                mismatches = differs[word[i - 1]]
                np.minimum(cell, table[i - 1, j - 1] + mismatches[j - 1], out=cell)
                np.minimum(cell, table[i - 1, j] + 1, out=cell)
                np.minimum(cell, table[i, j - 1] + 1, out=cell)
                if i > 1 and j > 1:
                    exchanged = ~(mismatches[j - 2] | differs[word[i - 2]][j - 1])
                    np.minimum(cell, table[i - 2, j - 2] + 1, out=cell, where=exchanged)
        return table


def as_one_word(text: str) -> str:
    """Replace characters that end words, such as spaces, by private-use ones.

    Members of classes are completed as one word, whatever their text is.
    """
    return "".join(
        c if is_word_character(c) or ord(c) > _LAST_REPLACED else chr(ord(FIRST_STAND_IN) + ord(c))
        for c in text
    )


def restore_words(text: str) -> str:
    """Undo `as_one_word`."""
    if text.isascii():
        return text
    return "".join(c if c < FIRST_STAND_IN else chr(ord(c) - ord(FIRST_STAND_IN)) for c in text)


class WordState(NamedTuple):
    """State of a scan for words in a text.

    Attributes:
        begun: True if the current word has a character.
        pending: bytes after its last definite character: joiner, incomplete character, or both.
    """

    begun: bool = False
    pending: bytes = b""


def scan_words(word_state: WordState, spelled: bytes) -> tuple[tuple[int, ...], WordState | None]:
    """Scan more bytes of a text.

    Returns:
        Ends of words, as byte offsets in the pending bytes, while single spaces separate words;
        and the state after the bytes, or None if no word continues or starts there.
    """
    raw = word_state.pending + spelled
    text, _ = codecs.utf_8_decode(raw, "replace", False)  # noqa: FBT003 - takes no names
    begun, joined = word_state.begun, False
    # bytes up to the word's last definite character, and up to this character
    sure = at = 0
    ends: list[int] = []
    for one in text:
        at += len(one.encode())
        if is_word_character(one):
            begun, joined, sure = True, False, at
        elif begun and not joined and one in JOINERS:
            joined = True
        else:
            if not begun:
                return tuple(ends), None
            ends.append(sure)
            if joined or one != " ":
                return tuple(ends), None
            begun, sure = False, at
    return tuple(ends), WordState(begun, raw[sure:])
