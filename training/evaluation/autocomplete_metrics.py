"""Metrics of the simulated typist, with bootstrap intervals.

Keystroke savings = 1 − keys pressed / keys without completions (Trnka and McCoy
2008; Trnka et al. 2009) of the text as written, by one rule for all tokenizers.
Every code point and line's end is a key. The typist reads the list before each
character except a space. A completion is right if it spells the next characters, in
their case, up to a word's end. It is selected as soon as it saves a key, the
furthest-reaching first, by one key that also writes a space, as in
`autocomplete.js`: closing punctuation replaces the space, any other character takes
a key to delete it. All else is typed; no key is wrong.

Word savings, for comparison: completions must equal the model's own words, in any
case if it lower-cases; the key also ends the line, and writes only wanted spaces;
`<unk>` marks are not typed. The metrics below are about these words, too.

Recall: the share of words in the list. MRR: the mean of 1 / rank, 0 beyond the
tenth; before the first letter, and over all positions before a letter. Recoverable
length: the number of a word's last letters not to type, back to the last position
where the list lacks it (Kim 2019). A phrase of n words matches if the most probable
word, the most probable word after it, … are the next n words of the text
(ExactMatch of Chen et al. 2019, greedy). Acceptance: a service that shows its first
completion only above a probability shows it at a share of positions (coverage) and
is correct at a share of these (precision).

Intervals are percentile intervals of a bootstrap over lines (Efron and Tibshirani
1993, chapter 13). Words of a line are dependent, so entire lines are resampled.
Every metric is a ratio of two sums over lines; two models are compared on the same
lines, resample by resample.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.arrays import AnyArray, Bools, Float64s, Int64s

_SEED = 1
_RESAMPLES = 1_000
_PERCENTILES = (2.5, 97.5)

LIST_LENGTHS = (1, 3)
"""Numbers of completions shown to the typist."""

_NO_EXTRA_KEY = frozenset(("", " ", *".,;:!?)]}"))
"""Characters after a completion that take no key to delete its space.

Punctuation replaces it in `autocomplete.js`.
"""

MAX_PHRASE_WORDS = 5
"""Maximum words of a compared phrase."""
COVERAGES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
_MAX_LETTERS = 10


class Ratio(NamedTuple):
    """Metric as a ratio of two sums over lines.

    Attributes:
        numerator: numerator of each line [L].
        denominator: denominator of each line [L].
    """

    numerator: Float64s
    denominator: Float64s


def bootstrap_counts(num_lines: int) -> Float64s:
    """Draw bootstrap resamples with a fixed seed: counts of each line [1000, L]."""
    random = np.random.default_rng(_SEED)
    counts = random.multinomial(num_lines, np.full(num_lines, 1 / num_lines), size=_RESAMPLES)
    return counts.astype(np.float64)


def bootstrap_interval(
    ratio: Ratio, draws: Float64s, *, less: Ratio | None = None
) -> dict[str, float | None]:
    """Compute a figure, `value`, with the ends of its 95 % interval, `low` and `high`.

    All are None if the denominator is 0.

    Args:
        ratio: the figure of L lines.
        draws: `bootstrap_counts` of L lines.
        less: another model's figure on the same lines, to subtract.
    """
    value, resampled = _value(ratio), _resampled_values(ratio, draws)
    if less is not None:
        value, resampled = value - _value(less), resampled - _resampled_values(less, draws)
    known = resampled[np.isfinite(resampled)]
    if not math.isfinite(value) or not len(known):
        return {"value": None, "low": None, "high": None}
    low, high = np.percentile(known, _PERCENTILES)
    return {"value": value, "low": float(low), "high": float(high)}


def _value(ratio: Ratio) -> float:
    denominator = float(ratio.denominator.sum())
    return float(ratio.numerator.sum()) / denominator if denominator else math.nan


def _resampled_values(ratio: Ratio, draws: Float64s) -> Float64s:
    """Return the figure of each draw; NaN if the denominator is 0."""
    denominators = draws @ ratio.denominator
    values: Float64s = np.divide(
        draws @ ratio.numerator, denominators, out=np.full(len(draws), np.nan), where=denominators > 0
    )
    return values


class WordSpan(NamedTuple):
    """A word of a line.

    Attributes:
        begin: start offset in the line, in code points.
        end: end offset in the line.
        spaced: True if a space or the line's end follows, which a completion
            includes.
        joined: True if a single space separates it from the previous word.
    """

    begin: int
    end: int
    spaced: bool
    joined: bool


class TypingLine(NamedTuple):
    """A line to type.

    Attributes:
        text: the line.
        spelled: the line as the model's own words spell it: lower-cased if the
            tokenizer lower-cases.
        num_keys: keys without completions: one per code point and for the line's
            end; without `<unk>` marks.
        words: the model's own words, in order.
    """

    text: str
    spelled: str
    num_keys: int
    words: tuple[WordSpan, ...]


class CompletionRank(NamedTuple):
    """Completion list before one keystroke.

    Attributes:
        rank: rank of the model's own word in the list, from 1; 0 if not listed.
        probability: probability of the first completion; 0 without completions.
        ends: for each of `LIST_LENGTHS`, and perhaps again for lists without
            repeats, the furthest offset in the line to which a right completion
            spells it; 0 if none is right.
    """

    rank: int
    probability: float
    ends: tuple[int, ...] = (0,) * len(LIST_LENGTHS)


class TypedLine(NamedTuple):
    """A typed line with its completion ranks.

    Attributes:
        line: the line.
        ranks: completion lists before each character except spaces, by offset.
    """

    line: TypingLine
    ranks: Mapping[int, CompletionRank]

    @property
    def completion_ranks(self) -> list[list[CompletionRank]]:
        """Ranks of each word after 0, 1, 2, … letters, until one is left."""
        spans = [range(word.begin, word.end) for word in self.line.words]
        return [[self.ranks.get(offset, CompletionRank(0, 0.0)) for offset in span] for span in spans]

    def keys_pressed(self, number: int) -> int:
        """Count the keys for line and end, with the list of a number in `CompletionRank.ends`."""
        text, keys, offset = self.line.text, 1, 0
        while offset < len(text):
            end = self.ranks[offset].ends[number] if offset in self.ranks else 0
            following = text[end : end + 1]
            cost = 1 if following in _NO_EXTRA_KEY else 2
            reached = end + (following == " ")
            keys, offset = (keys + cost, reached) if reached - offset > cost else (keys + 1, offset + 1)
        return keys


class Ranks(NamedTuple):
    """The words of typed lines as arrays.

    Attributes:
        table: ranks after 0, 1, 2, … letters [N, K]; 0 where a word is not listed,
            -1 past its last letter.
        letters: letters of each word [N].
        spaced: True if a space or the line's end follows [N].
        joined: True if a single space separates the word from the line's previous
            one [N].
        lines: line index of each word [N].
        num_keys: `TypingLine.num_keys` of each line [L].
        keys: keys for each line without completions and with each list of
            `list_names` [L, 3 or 5].
    """

    table: Int64s
    letters: Int64s
    spaced: Bools
    joined: Bools
    lines: Int64s
    num_keys: Float64s
    keys: Float64s

    @classmethod
    def of(cls, typed: list[TypedLine]) -> "Ranks":
        """Collect the words of all lines."""
        numbers = range(max((len(rank.ends) for line in typed for rank in line.ranks.values()), default=2))
        words = np.array([word for line in typed for word in line.line.words], np.int64).reshape(-1, 4)
        begins, ends, spaced, joined = words.T
        letters = ends - begins
        table = np.full((len(words), letters.max(initial=0)), -1, np.int64)
        word_ranks = (ranks for line in typed for ranks in line.completion_ranks)
        for row, ranks in enumerate(word_ranks):
            table[row, : len(ranks)] = [rank.rank for rank in ranks]
        return cls(
            table=table,
            letters=letters,
            spaced=spaced.astype(np.bool_),
            joined=joined.astype(np.bool_),
            lines=np.repeat(np.arange(len(typed)), [len(line.line.words) for line in typed]),
            num_keys=np.array([line.line.num_keys for line in typed], np.float64),
            keys=np.array(
                [[len(one.line.text) + 1, *map(one.keys_pressed, numbers)] for one in typed], float
            ),
        )

    def by_line(self, values: AnyArray) -> Float64s:
        """Sum a value of words [N] by line [L]."""
        return np.bincount(self.lines, values, minlength=len(self.num_keys)).astype(np.float64)

    def shown(self, length: int) -> Bools:
        """Return True for words among the first `length` completions, before each letter [N, K]."""
        return (self.table > 0) & (self.table <= length)


def list_names(lists: Sequence[Any]) -> list[str]:
    """Return the names of the first lists: of each length, and again without repeats."""
    names = [f"top_{n}" for n in LIST_LENGTHS]
    return [*names, *(f"{name}_no_repeats" for name in names)][: len(lists)]


def ratios(ranks: Ranks) -> dict[str, Ratio]:
    """Return all figures with an interval, by name."""
    words = ranks.by_line(np.ones(len(ranks.letters)))
    first = ranks.table[:, 0]
    keys, *pressed = ranks.keys.T
    lists = LIST_LENGTHS
    reciprocal = _reciprocal_ranks(ranks.table).sum(axis=1)
    by_line = ranks.by_line
    figures = {
        **{
            f"keystroke_savings_{name}": Ratio(keys - with_list, keys)
            for name, with_list in zip(list_names(pressed), pressed, strict=True)
        },
        **{f"word_savings_top_{n}": Ratio(by_line(saved_keys(ranks, n)), ranks.num_keys) for n in lists},
        **{f"next_word_recall_top_{n}": Ratio(by_line((first > 0) & (first <= n)), words) for n in lists},
        "next_word_mrr": Ratio(by_line(_reciprocal_ranks(first)), words),
        "mrr": Ratio(by_line(reciprocal), by_line(ranks.letters)),
        **{
            f"mean_recoverable_length_top_{n}": Ratio(by_line(recoverable_letters(ranks, n)), words)
            for n in lists
        },
    }
    for count, (matches, phrases) in enumerate(_phrase_matches(ranks), start=1):
        figures[f"phrase_match_{count}"] = Ratio(ranks.by_line(matches), ranks.by_line(phrases))
    return figures


def saved_keys(ranks: Ranks, length: int) -> Int64s:
    """Count the keys that a list of `length` completions saves at each word, for word savings [N]."""
    shown = ranks.shown(length)
    typed = np.where(shown.any(axis=1), shown.argmax(axis=1), ranks.letters)
    return np.maximum(ranks.letters - typed + ranks.spaced - 1, 0)


def recoverable_letters(ranks: Ranks, length: int) -> Int64s:
    """Count the trailing letters of each word at which the list always contains it [N]."""
    missing = ~ranks.shown(length) & (ranks.table >= 0)
    columns = np.arange(ranks.table.shape[1])
    last = np.where(missing, columns, -1).max(axis=1, initial=-1)
    recoverable: Int64s = ranks.letters - 1 - last
    return recoverable


def recall_by_letters(ranks: Ranks) -> list[dict[str, Any]]:
    """Return recall after 0, 1, 2, … letters, over words with more letters."""
    rows: list[dict[str, Any]] = []
    for letters in range(min(_MAX_LETTERS + 1, ranks.table.shape[1])):
        longer = ranks.table[:, letters] >= 0
        recalls = {f"top_{n}": float(ranks.shown(n)[longer, letters].mean()) for n in LIST_LENGTHS}
        rows.append({"letters": letters, "words": int(longer.sum()), **recalls})
    return rows


def acceptance(typed: list[TypedLine], *, first_only: bool) -> list[dict[str, float]]:
    """Compute the precision of first completions above a probability threshold, a row per coverage.

    Args:
        typed: the lines.
        first_only: count only before first letters of words; else before every
            letter.

    Returns:
        Coverage, threshold (lowest probability shown), mean probability shown, and
        precision, which equals it for a calibrated model.
    """
    last = 1 if first_only else None
    ranks = [rank for line in typed for word_ranks in line.completion_ranks for rank in word_ranks[:last]]
    ranks.sort(key=lambda rank: -rank.probability)
    right = np.cumsum([rank.rank == 1 for rank in ranks])
    sums = np.cumsum([rank.probability for rank in ranks])
    counts = {coverage: max(1, round(coverage * len(ranks))) for coverage in COVERAGES if ranks}
    return [
        {
            "coverage": coverage,
            "threshold": ranks[count - 1].probability,
            "mean_probability": float(sums[count - 1]) / count,
            "precision": float(right[count - 1]) / count,
        }
        for coverage, count in counts.items()
    ]


def _phrase_matches(ranks: Ranks) -> Sequence[tuple[Bools, Bools]]:
    """Return masks of the words where n = 1, 2, … greedy words match, and where n words exist [N]."""
    is_first = ranks.table[:, 0] == 1
    matches, phrases = is_first, np.ones_like(is_first)
    rows = [(matches, phrases)]
    for count in range(2, MAX_PHRASE_WORDS + 1):
        begins = max(len(is_first) - count + 1, 0)
        exists, right = np.zeros((2, len(is_first)), np.bool_)
        exists[:begins] = phrases[:begins] & ranks.joined[count - 1 :]
        right[:begins] = matches[:begins] & is_first[count - 1 :] & exists[:begins]
        matches, phrases = right, exists
        rows.append((matches, phrases))
    return rows


def _reciprocal_ranks(table: Int64s) -> Float64s:
    """Return 1 / rank; 0 where a word is not listed."""
    return np.divide(1.0, table, out=np.zeros(table.shape), where=table > 0)
