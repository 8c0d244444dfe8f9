"""What the typist's looks come to.

Keystroke savings = 1 - keys pressed / keys without completions (Trnka and McCoy 2008; Trnka et al. 2009). Every
code point is a key, and so is a line's end. The typist looks at the list before each letter of a word, takes the
word by one key as soon as it is there, and that key writes the space after it, too (or ends the line); where
something else follows, as a comma does in text that is not tokenised, it writes none. He leaves a completion
that spares nothing, and presses no wrong key.

Recall: the share of words that are in the list. MRR: the mean of 1 / rank, 0 past the list's ten; once before
the first letter, once over all places before a letter. Recoverable length: how many of a word's last letters
need not be typed, counted back from its end as long as the list holds it (Kim 2019). Phrases of n words match
if the most probable word, the most probable after that, … are the next n words of the text (ExactMatch of
Chen et al. 2019, greedily): then each was first in its list, so the looks tell. Acceptance: a service that
shows its first completion only if it is probable enough, does so at some of the places (coverage), and is
right at some of those (precision).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from training.evaluating.completing.intervals import LineValues, Ratio
from training.evaluating.completing.looks import TypedLine, rank_table

LIST_LENGTHS = (1, 3)
"""How many completions the typist sees."""
MAX_PHRASE_WORDS = 5
"""Of a phrase."""
COVERAGES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
_MAX_LETTERS = 10


class Ranks(NamedTuple):
    """The words of typed lines as arrays.

    Attributes:
        table: see `rank_table` [N, K].
        letters: of each word [N].
        spaced: whether a space follows it [N].
        joined: whether only a space stands before it, and a word of the same line before that [N].
        lines: the line each is of [N].
        num_keys: of each line [L].
    """

    table: npt.NDArray[np.int64]
    letters: npt.NDArray[np.int64]
    spaced: npt.NDArray[np.bool_]
    joined: npt.NDArray[np.bool_]
    lines: npt.NDArray[np.int64]
    num_keys: LineValues

    @classmethod
    def of(cls, typed: list[TypedLine]) -> "Ranks":
        """Collect those of all lines."""
        words = [word for one in typed for word in one.line.words]
        return cls(
            table=rank_table(typed),
            letters=np.array([word.num_letters for word in words], dtype=np.int64),
            spaced=np.array([word.spaced for word in words], dtype=np.bool_),
            joined=np.array([word.joined for word in words], dtype=np.bool_),
            lines=np.repeat(np.arange(len(typed)), [len(one.line.words) for one in typed]),
            num_keys=np.array([one.line.num_keys for one in typed], dtype=np.float64),
        )

    def by_line(self, values: npt.NDArray[Any]) -> LineValues:
        """Sums over each line's words of a number a word [L]."""
        sums: LineValues = np.bincount(self.lines, values, minlength=len(self.num_keys)).astype(np.float64)
        return sums

    def shown(self, length: int) -> npt.NDArray[np.bool_]:
        """Whether each word is among so many completions, before each letter [N, K]."""
        return (self.table > 0) & (self.table <= length)


def ratios(ranks: Ranks) -> dict[str, Ratio]:
    """All figures with an interval, by name."""
    words = ranks.by_line(np.ones(len(ranks.letters)))
    first = ranks.table[:, 0]
    told: dict[str, Ratio] = {}
    for length in LIST_LENGTHS:
        told[f"keystroke_savings_top_{length}"] = Ratio(
            ranks.by_line(saved_keys(ranks, length)), ranks.num_keys
        )
    for length in LIST_LENGTHS:
        told[f"next_word_recall_top_{length}"] = Ratio(ranks.by_line((first > 0) & (first <= length)), words)
    told["next_word_mrr"] = Ratio(ranks.by_line(_reciprocal_ranks(first)), words)
    reciprocal = _reciprocal_ranks(ranks.table).sum(axis=1)
    told["mrr"] = Ratio(ranks.by_line(reciprocal), ranks.by_line(ranks.letters))
    for length in LIST_LENGTHS:
        recovered = ranks.by_line(recoverable_letters(ranks, length))
        told[f"mean_recoverable_length_top_{length}"] = Ratio(recovered, words)
    for count, (matches, phrases) in enumerate(_phrase_matches(ranks), start=1):
        told[f"phrase_match_{count}"] = Ratio(ranks.by_line(matches), ranks.by_line(phrases))
    return told


def saved_keys(ranks: Ranks, length: int) -> npt.NDArray[np.int64]:
    """Keys that a list of so many completions spares at each word [N]."""
    shown = ranks.shown(length)
    typed = np.where(shown.any(axis=1), shown.argmax(axis=1), ranks.letters)
    saved: npt.NDArray[np.int64] = np.maximum(ranks.letters - typed + ranks.spaced - 1, 0)
    return saved


def recoverable_letters(ranks: Ranks, length: int) -> npt.NDArray[np.int64]:
    """Letters from each word's end back to where the list does not hold it [N]."""
    missing = ~ranks.shown(length) & (ranks.table >= 0)
    places = np.arange(ranks.table.shape[1])
    last = np.where(missing, places, -1).max(axis=1, initial=-1)
    recoverable: npt.NDArray[np.int64] = ranks.letters - 1 - last
    return recoverable


def recall_by_letters(ranks: Ranks) -> list[dict[str, Any]]:
    """Recall after so many letters, of the words that have more."""
    told: list[dict[str, Any]] = []
    for letters in range(min(_MAX_LETTERS + 1, ranks.table.shape[1])):
        longer = ranks.table[:, letters] >= 0
        count = int(longer.sum())
        recalls = {f"top_{n}": float(ranks.shown(n)[longer, letters].mean()) for n in LIST_LENGTHS}
        told.append({"letters": letters, "words": count, **recalls})
    return told


def acceptance(typed: list[TypedLine], *, first_only: bool) -> list[dict[str, float]]:
    """What a first completion is worth that is shown if it is probable enough: a row for each of some coverages.

    Args:
        typed: the lines.
        first_only: count places before a word's first letter only, else all places before a letter.

    Returns:
        The coverage, the least probability shown (threshold), the mean of those shown, and their precision,
        which equals that mean if probabilities mean what they say.
    """
    looks = [
        look
        for one in typed
        for of_word in one.completion_ranks
        for look in of_word[: 1 if first_only else None]
    ]
    looks.sort(key=lambda look: -look.probability)
    right = np.cumsum([look.rank == 1 for look in looks])
    sums = np.cumsum([look.probability for look in looks])
    told = []
    for coverage in COVERAGES if looks else ():
        count = max(1, round(coverage * len(looks)))
        row = {
            "coverage": coverage,
            "threshold": looks[count - 1].probability,
            "mean_probability": float(sums[count - 1]) / count,
            "precision": float(right[count - 1]) / count,
        }
        told.append(row)
    return told


def _phrase_matches(ranks: Ranks) -> Sequence[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """Whether n greedy words match, and whether there are n words to match, from each word on [N], for n = 1, 2, …."""
    here = ranks.table[:, 0] == 1
    matches, phrases = here, np.ones_like(here)
    told = [(matches, phrases)]
    for count in range(2, MAX_PHRASE_WORDS + 1):
        there = np.zeros_like(here)
        right = np.zeros_like(here)
        begins = len(here) - count + 1
        if begins > 0:
            there[:begins] = phrases[:begins] & ranks.joined[count - 1 :]
            right[:begins] = matches[:begins] & here[count - 1 :]
        matches, phrases = right & there, there
        told.append((matches, phrases))
    return told


def _reciprocal_ranks(table: npt.NDArray[np.int64]) -> LineValues:
    """1 / rank; 0 where there is none."""
    answer: LineValues = np.divide(1.0, table, out=np.zeros(table.shape), where=table > 0)
    return answer
