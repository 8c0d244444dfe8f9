"""What a typist saw: the values that everything is counted from."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class WordSpan(NamedTuple):
    """A word of a line.

    Attributes:
        begin: where it begins, in code points of the line.
        end: where it ends.
        spaced: whether a space or the line's end follows: whoever takes a completion need not type it.
        joined: whether nothing but a space stands between it and the word before.
    """

    begin: int
    end: int
    spaced: bool
    joined: bool

    @property
    def num_letters(self) -> int:
        """Code points."""
        return self.end - self.begin


class TypingLine(NamedTuple):
    """A line to type.

    Attributes:
        text: the line.
        num_keys: keys it takes without completions: a code point is one, and the line's end.
        words: those that are typed, in order.
    """

    text: str
    num_keys: int
    words: tuple[WordSpan, ...]


class CompletionRank(NamedTuple):
    """What the typist saw at one place.

    Attributes:
        rank: of the word he wants in the list of completions, from 1; 0 if it is not there.
        probability: of the first completion; 0 where there is none.
    """

    rank: int
    probability: float


class TypedLine(NamedTuple):
    """A line and what was seen while it was typed.

    Attributes:
        line: the line.
        completion_ranks: of each word: before its first letter, after one, two, …, with one letter left.
    """

    line: TypingLine
    completion_ranks: tuple[tuple[CompletionRank, ...], ...]


def rank_table(typed: list[TypedLine]) -> npt.NDArray[np.int64]:
    """Ranks of all words, line by line, before a letter, after one, two, … [N, K]; 0 where a word is not in the list.

    Past a word's last letter there is -1.
    """
    seen = [looks for of_line in typed for looks in of_line.completion_ranks]
    table = np.full((len(seen), max(map(len, seen), default=0)), -1, dtype=np.int64)
    for row, looks in enumerate(seen):
        table[row, : len(looks)] = [look.rank for look in looks]
    return table
