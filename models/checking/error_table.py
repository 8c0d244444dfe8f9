"""Error model by letters: which letters people omit, insert, replace and swap, and after which letters.

A table has counts of the edits that turn intended words into misspellings, in the manner of Kernighan,
Church and Gale 1990, A spelling correction program based on a noisy channel model. The rate of an edit is its
count divided by the number of places where it was possible; rare edits are smoothed with the rate without the
letter before, and that with the average rate of their kind. The probability of an edit of a word is its rate
divided by the sum of the rates of all edits of the word, so long words are not misspelt more often.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

START, END = "^", "$"
"""The contexts before the first letter and after the last one."""
_MAX_LETTERS = 62
"""The most frequent letters have their own rates; all others share those of one letter without counts."""
_OTHER = 1
_SWAP = 3
_PRIOR_PLACES = 100.0
"""Number of places that the prior of a rate counts for: of 20, 100 and 400, half of codespell's dictionary predicts the
other half best with 100, and a thousandth of it with 100 or 400."""
_PRIOR_PAIRS, _PRIOR_TWO_EDITS = 10, 2
_MAX_LENGTH = 40
"""Maximum characters of a word whose edits are compared."""

Floats = npt.NDArray[np.float64]
_Count = Annotated[int, Field(ge=1, le=1 << 40)]
_Edit = Annotated[str, StringConstraints(pattern=r"^(\S{2}>\S{1,2}|\S>\S{2}|\S{3}>\S{3})$")]


class ErrorTable(BaseModel):
    """Counts of edits in misspellings.

    `edits` are named by the intended and the typed letters, both with the letter before, which is `^` at the start of a
    word: `mm>m` omits an m after an m. `contexts` are the pairs of neighbouring letters of the intended words, with
    `^` and `$`. Of the misspellings, `one_edit` and `two_edits` have so many edits. `source_sha256` is the hash of
    their file, `created` the time (ISO 8601, UTC).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = 1
    one_edit: _Count
    two_edits: Annotated[int, Field(ge=0, le=1 << 40)]
    edits: Annotated[dict[_Edit, _Count], Field(min_length=1)]
    contexts: dict[Annotated[str, StringConstraints(pattern=r"^\S{2}$")], _Count]
    source_sha256: str
    created: str

    @cached_property
    def rates(self) -> "EditRates":
        """The rates of all edits; computed on first use."""
        return EditRates(self)


_SHAPES = ((1, 0), (0, 1), (1, 1), (2, 2))
"""Letters of the intended and of the typed word in an omission, an insertion, a substitution and a swap."""


class EditRates:
    """Probabilities of misspellings.

    Args:
        table: the counts.
    """

    def __init__(self, table: ErrorTable) -> None:
        frequency = Counter[str]()
        for (_, letter), count in table.contexts.items():
            frequency[letter] += count
        del frequency[END]
        letters = [letter for letter, _ in frequency.most_common(_MAX_LETTERS)]
        codes = {START: 0, END: 0} | {letter: code for code, letter in enumerate(letters, start=_OTHER + 1)}
        capitals = {letter.upper(): codes[letter] for letter in letters if len(letter.upper()) == 1}
        self._codes = np.full(max(map(ord, [*letters, *capitals])) + 2, _OTHER)
        for letter, code in (capitals | codes | {"\0": 0}).items():
            self._codes[ord(letter)] = code
        size = len(letters) + 2
        places = np.zeros((size, size))
        for (before, letter), count in table.contexts.items():
            places[codes.get(before, _OTHER), codes.get(letter, _OTHER)] += count
        counts, swapped = np.zeros((size, size, size)), np.zeros((size, size))
        for edit, count in table.edits.items():
            meant, typed = ([codes.get(letter, _OTHER) for letter in part] for part in edit.split(">", 1))
            if len(meant) == len(typed) == _SWAP:
                swapped[meant[1], meant[2]] += count
            else:
                counts[meant[0], (*meant, 0)[1], (*typed, 0)[1]] += count
        self._rates, self._swaps, self._sums = _smoothed(counts, swapped, places, len(letters))
        two = (table.two_edits + _PRIOR_TWO_EDITS) / (table.one_edit + table.two_edits + _PRIOR_PAIRS)
        self._log_shares = np.log([1.0, 1 - two, two])

    def log_probs(self, typed: Sequence[str], intended: Sequence[str], edits: npt.NDArray[np.uint8]) -> Floats:
        """Return ln P(typed | intended and misspelt) of pairs with one or two edits [M]; NaN for long words."""
        width = max(map(len, (*typed, *intended)), default=0) + 3
        meant, num_meant = _padded(intended, width, 0)
        found, num_typed = _padded(typed, width, 1)
        own = self._codes[np.minimum(meant, len(self._codes) - 1)]
        new = self._codes[np.minimum(found, len(self._codes) - 1)]
        log_sums = np.log(self._sums[own[:, :-1], own[:, 1:]].sum(axis=1))
        best = np.full(len(edits), -np.inf)
        pairs = np.arange(len(edits))
        i, j, score, left = np.ones_like(pairs), np.ones_like(pairs), np.zeros(len(pairs)), edits.astype(np.int64)
        steps = np.arange(meant.shape[1])
        while len(pairs):
            # read the common letters
            last = meant.shape[1] - 1
            same = (
                meant[pairs[:, None], np.minimum(i[:, None] + steps, last)]
                == found[pairs[:, None], np.minimum(j[:, None] + steps, last)]
            )
            run = np.argmin(same, axis=1)
            i, j = i + run, j + run
            rest_i, rest_j = num_meant[pairs] + 1 - i, num_typed[pairs] + 1 - j
            done = (rest_i == 0) & (rest_j == 0)
            np.maximum.at(best, pairs[done], score[done])
            parts = []
            for a, b in _SHAPES:
                ok = (rest_i >= a) & (rest_j >= b) & (np.abs(rest_i - a - rest_j + b) < left) & ~done
                rows = np.flatnonzero(ok)
                p, x, y = pairs[rows], i[rows], j[rows]
                if a == 2:
                    swap = (meant[p, x] == found[p, y + 1]) & (meant[p, x + 1] == found[p, y])
                    rows, p, x, y = rows[swap], p[swap], x[swap], y[swap]
                    rate = self._swaps[own[p, x], own[p, x + 1]]
                else:
                    rate = self._rates[own[p, x - 1], own[p, x] if a else 0, new[p, y] if b else 0]
                parts.append((p, x + a, y + b, score[rows] + np.log(rate) - log_sums[p], left[rows] - 1))
            pairs, i, j, score, left = (np.concatenate(column) for column in zip(*parts, strict=True))
        return np.where(np.isfinite(best), best + self._log_shares[edits], np.nan)


def _smoothed(
    counts: Floats, swapped: Floats, places: Floats, num_letters: int
) -> tuple[Floats, Floats, Floats]:
    """Return the rates of single letters, of swaps, and the sums of all rates between two letters."""
    chances = places.copy()
    chances[:, 0] = places.sum(axis=1)  # insertions after each letter
    base = np.zeros(counts.shape[1:])
    for x, y, spread in ((slice(1, None), 0, 1), (0, slice(1, None), num_letters), (slice(1, None), slice(1, None), num_letters - 1)):
        base[x, y] = (counts[:, x, y].sum() + 1) / (chances[:, x].sum() + 1) / max(spread, 1)
    without = (counts.sum(axis=0) + _PRIOR_PLACES * base) / (chances.sum(axis=0)[:, None] + _PRIOR_PLACES)
    rates = (counts + _PRIOR_PLACES * without) / (chances[:, :, None] + _PRIOR_PLACES)
    same = np.arange(len(base))
    rates[:, same, same] = 0
    average = (swapped.sum() + 1) / (places[1:, 1:].sum() + 1)
    swaps = (swapped + _PRIOR_PLACES * average) / (places + _PRIOR_PLACES)
    swaps[0], swaps[:, 0], swaps[same, same] = 0, 0, 0
    sums = rates.sum(axis=2) + rates[:, 0].sum(axis=1)[:, None] + swaps
    sums[:, 0], sums[0, 0] = rates[:, 0].sum(axis=1), 0
    rates[:, same, same] = base[same, same]  # a letter in the other case
    swaps[same, same] = average
    return rates, swaps, sums


def _padded(words: Sequence[str], width: int, padding: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the characters of words, between a zero and `padding` each [N, L], and their lengths [N]."""
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    out = np.full((len(words), width), padding, dtype=np.uint32)
    out[:, 0] = 0
    inside = np.arange(out.shape[1] - 1) < lengths[:, None]
    out[:, 1:][inside] = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return out, lengths
