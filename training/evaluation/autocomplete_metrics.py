"""Metrics of the simulated typist, with bootstrap intervals.

Keystroke savings = 1 − keys pressed / keys without completions (Trnka and McCoy 2008; Trnka et al.
2009). Every code point is a key, and so is a line's end. The typist looks at the list before each
letter of a word and takes the word by one key as soon as it is listed; that key also writes the
space after it (or ends the line). Where something else follows, as a comma does in text that is not
tokenised, it writes none. A completion that saves nothing is not taken, and no wrong key is pressed.

Recall: the share of words that are in the list. MRR: the mean of 1 / rank, 0 beyond the tenth; once
before the first letter, once over all positions before a letter. Recoverable length: how many of a
word's last letters need not be typed, counted back from its end as long as the list holds it (Kim
2019). Phrases of n words match if the most probable word, the most probable one after that, … are
the next n words of the text (ExactMatch of Chen et al. 2019, greedily). Acceptance: a service that
shows its first completion only above a probability does so at a share of positions (coverage) and
is right at a share of those (precision).

Intervals are percentile intervals of a bootstrap over lines (Efron and Tibshirani 1993, chapter 13):
words of a line are dependent, so whole lines are resampled. Every metric is a ratio of two sums over
lines; two models over the same lines are compared resample by resample.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

LineValues: TypeAlias = npt.NDArray[np.float64]

_RESAMPLES = 1_000
_PERCENTILES = (2.5, 97.5)
_SEED = 1


class Ratio(NamedTuple):
    """A figure as parts of the lines.

    Attributes:
        numerator: what is summed above the line [L].
        denominator: what is summed below it [L].
    """

    numerator: LineValues
    denominator: LineValues


class Interval(NamedTuple):
    """A figure and where it lies with 95 % probability.

    Attributes:
        value: the figure; None where there is nothing to divide by.
        low: the lower end; None likewise.
        high: the upper end.
    """

    value: float | None
    low: float | None
    high: float | None


def bootstrap_counts(num_lines: int) -> LineValues:
    """How often each line is drawn [1000, L]; always the same draws."""
    random = np.random.default_rng(_SEED)
    counts = random.multinomial(num_lines, np.full(num_lines, 1 / num_lines), size=_RESAMPLES)
    return counts.astype(np.float64)


def bootstrap_interval(ratio: Ratio, draws: LineValues) -> Interval:
    """A figure with its interval.

    Args:
        ratio: of L lines.
        draws: `resamples` of L lines.
    """
    return _percentile_interval(_value(ratio), _resampled_values(ratio, draws))


def bootstrap_difference(a: Ratio, b: Ratio, draws: LineValues) -> Interval:
    """By how much a figure of one model is above another's, both over the same lines."""
    of_a, of_b = _value(a), _value(b)
    both = None if of_a is None or of_b is None else of_a - of_b
    return _percentile_interval(both, _resampled_values(a, draws) - _resampled_values(b, draws))


def _value(ratio: Ratio) -> float | None:
    under = float(ratio.denominator.sum())
    return float(ratio.numerator.sum()) / under if under else None


def _resampled_values(ratio: Ratio, draws: LineValues) -> LineValues:
    """The figure of each draw; not a number where a draw has nothing to divide by."""
    under = draws @ ratio.denominator
    drawn: LineValues = np.divide(
        draws @ ratio.numerator, under, out=np.full(len(draws), np.nan), where=under > 0
    )
    return drawn


def _percentile_interval(value: float | None, drawn: LineValues) -> Interval:
    known = drawn[np.isfinite(drawn)]
    if value is None or not len(known):
        return Interval(None, None, None)
    low, high = np.percentile(known, _PERCENTILES)
    return Interval(value, float(low), float(high))


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
