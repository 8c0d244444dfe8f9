"""Map words of a text to ids and count them, without a Python object per word.

Words are runs of characters other than white space, as in `str.split`. The compiled part,
`word_kernels`, is imported at first use: a server that tokenises one sentence at a time does not
need it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from models.arrays import Int32s, Int64s, UInt8s
from models.vocabulary import UNK


class RaggedIds(NamedTuple):
    """Ids of several texts.

    Attributes:
        ids: concatenated ids of all texts [N], int32.
        offsets: start of each text, then N [L + 1], int64.
    """

    ids: Int32s
    offsets: Int64s


class TextSize(NamedTuple):
    """Number of words and of UTF-8 bytes in lines, without line ends."""

    num_words: int
    num_bytes: int


class WordIndex:
    """Fixed map from words to ids, for texts of many words.

    Args:
        ids: words and their ids, such as `Vocabulary.ids`; every other word is `<unk>`.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        from models.word_kernels import WordTable

        self._table = WordTable(ids).table
        self._ids = np.fromiter(ids.values(), np.int32, len(ids))

    def encode(self, lines: Sequence[str]) -> RaggedIds:
        """Return the ids of each line's words; releases the interpreter lock."""
        from models.word_kernels import encode_lines

        text = _join_lines(lines)
        ids = np.empty((len(text) + 1) // 2, dtype=np.int32)
        offsets = np.zeros(max(len(lines), 1) + 1, dtype=np.int64)  # no lines are read like one empty line
        encode_lines(text, self._table, self._ids, UNK, ids, offsets)
        offsets = offsets[: len(lines) + 1]
        return RaggedIds(ids[: offsets[-1]], offsets)


class WordCounter:
    """Counter of the words of a text that is added in pieces."""

    def __init__(self) -> None:
        from models.word_kernels import WordTable

        self._words = WordTable()
        self._counts = np.zeros(self._words.capacity, dtype=np.int64)

    def add(self, lines: Sequence[str]) -> None:
        """Count the words of lines, without the interpreter lock."""
        from models.word_kernels import count_occurrences

        words, text, position = self._words, _join_lines(lines), 0
        while True:
            position, words.size = count_occurrences(text, position, words.table, words.size, self._counts)
            if position == len(text):
                return
            words.grow(len(text) - position)
            self._counts.resize(words.capacity, refcheck=False)  # new entries are 0

    def counts(self) -> dict[str, int]:
        """Return the number of occurrences of each word, in order of first occurrence."""
        words = (word.decode("utf-8", "surrogatepass") for word in self._words.all_words())
        return dict(zip(words, self._counts[: self._words.size].tolist(), strict=True))


def measure_text(lines: Sequence[str]) -> TextSize:
    """Count the words and bytes in lines."""
    from models.word_kernels import count_words_in_bytes

    text = _join_lines(lines)
    return TextSize(int(count_words_in_bytes(text)), len(text) - max(len(lines) - 1, 0))


def _join_lines(lines: Sequence[str]) -> UInt8s:
    r"""Join lines with "\n", replacing it inside lines, so the number of lines is unchanged; return the bytes."""
    text = "\n".join(lines)
    if text.count("\n") > max(len(lines) - 1, 0):
        text = "\n".join(line.replace("\n", " ") for line in lines)
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
