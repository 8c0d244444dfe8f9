"""How probable a string is as the spelling of some word: a bigram model of characters."""

from collections.abc import Sequence
from math import log

import numpy as np

MAX_CHARACTERS = 255
"""The commonest characters have counts of their own; all others share one."""

_OTHER_CHARACTERS = 1 << 16
"""Among which a rare character is one, roughly."""

_END = 0
_OTHER = 1


class SpellingModel:
    """P(characters of a word, its end) by bigrams of characters with add-k smoothing.

    It is estimated from a list of words, each counted once: a word that is not in the list is more like its rare
    words than like its common ones.

    Args:
        words: to learn from.
        add: k, what is added to every count.
    """

    def __init__(self, words: Sequence[str], *, add: float = 0.1) -> None:
        codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        characters, counts = np.unique(codes, return_counts=True)
        common = characters[np.argsort(-counts, kind="stable")[:MAX_CHARACTERS]]
        self._indices = {chr(code): place for place, code in enumerate(common.tolist(), start=_OTHER + 1)}
        size = len(common) + 2
        lookup = np.full(int(codes.max(initial=0)) + 1, _OTHER, dtype=np.int64)
        lookup[common] = np.arange(_OTHER + 1, size)
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        ended = np.full(len(codes) + len(words), _END, dtype=np.int64)  # an end after each word
        ended[np.arange(len(codes)) + np.repeat(np.arange(len(words)), lengths)] = lookup[codes]
        pairs = np.concatenate([[_END], ended[:-1]]) * size + ended if len(ended) else ended
        table = np.bincount(pairs, minlength=size * size).reshape(size, size) + add
        self._log_probs = np.log(table / table.sum(axis=1, keepdims=True)).tolist()

    def log_prob(self, word: str) -> float:
        """The natural logarithm of a string's probability; over all strings they sum to 1 or less."""
        places, rows = self._indices, self._log_probs
        total, before = 0.0, _END
        for character in word:
            place = places.get(character, _OTHER)
            total += rows[before][place]
            if place == _OTHER:
                total -= log(_OTHER_CHARACTERS)
            before = place
        return total + float(rows[before][_END])
