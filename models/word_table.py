"""A growing set of words in the arrays that `word_kernels` searches and fills."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from models.word_kernels import WordHashTable, fill_slots, find_or_insert_word

_MIN_SLOTS = 1 << 10


class WordTable:
    """Distinct words, numbered from 0 as they come.

    Args:
        words: to start with, each once.

    Attributes:
        table: the arrays, with room for more words; other ones after `grow`.
        size: how many words are in them.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        spelt = [encode_utf8(word) for word in words]
        self.size = len(spelt)
        starts = np.zeros(self.size + 1, dtype=np.int64)
        np.cumsum([len(word) for word in spelt], out=starts[1:])
        spelling = np.frombuffer(bytearray(b"".join(spelt)), dtype=np.uint8)
        self.table = WordHashTable(np.zeros(0, np.uint64), starts, spelling)
        self._rebuild(self.size)

    @property
    def capacity(self) -> int:
        """How many words there is room for."""
        return len(self.table.starts) - 1

    def grow(self, num_bytes: int) -> None:
        """Make room for another word of up to so many bytes, and for many more like it."""
        if self.size == self.capacity:
            self._rebuild(2 * self.capacity)
        used, room = int(self.table.starts[self.size]), len(self.table.spelling)
        if used + num_bytes > room:
            spelling = np.zeros(max(2 * room, used + num_bytes), dtype=np.uint8)
            spelling[:used] = self.table.spelling[:used]
            self.table = self.table._replace(spelling=spelling)

    def add(self, word: bytes) -> int:
        """The number of a word, which is entered if it is new."""
        text = np.frombuffer(word, dtype=np.uint8)
        self.grow(len(text))
        number: int = find_or_insert_word(self.table, self.size, text)
        self.size = max(self.size, number + 1)
        return number

    def all_words(self) -> list[bytes]:
        """The words, by number."""
        ends = self.table.starts[: self.size + 1].tolist()
        whole = self.table.spelling[: ends[-1]].tobytes()
        return [whole[begin:end] for begin, end in pairwise(ends)]

    def _rebuild(self, num_words: int) -> None:
        slots = _MIN_SLOTS
        while slots < 2 * num_words:
            slots *= 2
        starts = np.zeros(slots // 2 + 1, dtype=np.int64)
        starts[: self.size + 1] = self.table.starts[: self.size + 1]
        self.table = WordHashTable(np.zeros(slots, np.uint64), starts, self.table.spelling)
        fill_slots(self.table, self.size)


def encode_utf8(text: str) -> bytes:
    """A text in UTF-8; half a surrogate pair, which is no character, keeps its number."""
    return text.encode("utf-8", "surrogatepass")
