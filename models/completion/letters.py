"""The letters of many tokens as a table, to compare them all with a word at once."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds

MAX_LETTERS = 32
"""Letters of a token that are looked at."""


class LetterTable:
    """Tokens and their letters.

    Args:
        ids: of the tokens [N].
        texts: what each spells.

    Attributes:
        ids: of the tokens [N].
        lengths: letters of each [N].
        texts: what each spells.
    """

    def __init__(self, ids: Sequence[int], texts: Sequence[str]) -> None:
        self.ids: TokenIds = np.array(ids, np.int64)
        self.texts = texts
        self.lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        letters = np.array(texts, dtype=f"U{MAX_LETTERS}").view(np.uint32)
        self._letters = np.ascontiguousarray(
            letters.reshape(-1, MAX_LETTERS).T
        )  # [L, N], 0 past a token's end

    def distances(self, word: str, edits: int) -> npt.NDArray[np.int8]:
        """How many edits make each beginning of a word of each beginning of each token.

        Letters are inserted, left out or replaced, or neighbours exchanged: optimal string alignment (Damerau 1964).

        Args:
            word: of at most `MAX_LETTERS - edits` letters, M.
            edits: larger distances are not told apart.

        Returns:
            [M + 1, M + 1 + edits, N]; more than `edits` where that many do not suffice.
        """
        size, width = len(word), len(word) + edits
        table = np.full((size + 1, width + 1, len(self.ids)), edits + 1, np.int8)
        differs = {letter: self._letters[:width] != ord(letter) for letter in set(word)}
        for i in range(size + 1):
            for j in range(max(0, i - edits), i + edits + 1):
                self._fill(table, i, j, word, differs)
        return table

    @staticmethod
    def _fill(
        table: npt.NDArray[np.int8], i: int, j: int, word: str, differs: dict[str, npt.NDArray[np.bool_]]
    ) -> None:
        cell = table[i, j]
        if not i or not j:
            np.minimum(cell, max(i, j), out=cell)
            return
        other = differs[word[i - 1]]
        np.minimum(cell, table[i - 1, j - 1] + other[j - 1], out=cell)
        np.minimum(cell, table[i - 1, j] + 1, out=cell)
        np.minimum(cell, table[i, j - 1] + 1, out=cell)
        if i > 1 and j > 1:
            exchanged = ~(other[j - 2] | differs[word[i - 2]][j - 1])
            np.minimum(cell, table[i - 2, j - 2] + 1, out=cell, where=exchanged)
