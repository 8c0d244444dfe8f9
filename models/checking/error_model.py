"""Error model of the noisy channel, the settings of checking, and calibrations of the error threshold.

If the model knows the typed word, the error rate of the intended word is divided
among the words near it, by edit distance (Mays, Damerau and Mercer 1991;
Wilcox-O'Hearn, Hirst and Budanitsky 2008): only errors that produce a word are
possible. The number of near words is assumed equal for all words. If the model does
not know the typed word, the rate is divided among the strings that an error can
make from the intended word.

A fitted table of edits replaces the uniform distribution over these strings. It
counts the edits from intended words to misspellings, as in Kernighan, Church and
Gale 1990, A spelling correction program based on a noisy channel model: which
letters people omit, insert, replace and swap, after which letters. The rate of an
edit after a letter is its count divided by the places for it. Its prior is the rate
after any letter, whose prior is the average rate of this kind. The probability of
an edit is its rate divided by the sum over all edits of the word: long words are
not wrong more often.

A calibration is precision and recall measured for one version of a model, by
threshold. Registries have calibrations in `<root>/.calibrations/name@7.json`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, StringConstraints, model_validator
from rapidfuzz.distance import OSA, Prefix

from models.arrays import Bools, Float64s, Int64s, UInt8s, UInt32s, code_points
from models.checking.lexicon import UserDictionary
from models.checkpoint.documents import DocumentStore, StoredDocument
from models.checkpoint.manifest import check_name, is_version_number
from models.errors import InputError
from models.words import is_alphabetic

_Share = Annotated[float, Field(ge=0, le=1)]

_TWO_EDITS_LETTERS = 5
"""Minimum letters of a word for two edits, which for fewer letters lead to too many words."""
_TWO_EDITS_LETTERS_UNKNOWN = 3
"""The same limit for unknown words."""
_TWO_EDITS_SHARE = 0.2
"""Share of misspellings with two edits; four in five have one (Damerau 1964)."""
_NEIGHBOURS = 8
"""Average number of words one error away from a word."""
_TWO_EDITS_WEIGHT = 0.01
"""Weight of a vocabulary word two edits away, relative to one edit away."""
_SPACE_SHARE = 0.1
"""Share of errors that add or omit a space."""
_FAR_SHARE = 1e-9
"""Share of errors that produce an unknown word unrelated to the intended one; so small, it only
orders suggestions and flags no names."""
_UNKNOWN_RATE = 1e-3
"""Minimum prior of unknown words, whatever the model predicts."""
_ALPHABET = 26
"""Number of letters that a typing error can produce."""
_SLIPS_SHARE = 0.05
"""Share of errors with equally probable edits, whatever the table says."""
_WORDS_GAIN = 2.6
"""Mean of the table's probability relative to equal ones for vocabulary words one edit apart: 2.5 to 2.8
by the frequencies of 10,000 to 300,000 words and codespell's misspellings. Real-word errors stay as frequent."""
_MAX_EDITS = 2
"""Maximum edits of a misspelling with a probability."""
_MAX_FITTED_LETTERS = 40
"""Maximum letters of words for which the table is used."""


_START, _END, _OTHER = "^", "$", 1
_MAX_LETTERS = 62
"""The most frequent letters have rates; others share those of a letter without counts."""
_PRIOR_PLACES = 100.0
"""Places that a prior counts for. Of 20, 100 and 400, half of codespell's dictionary predicts the other half
best with 100; for a few hundred misspellings 100 and 400 are about equal."""
_PRIOR_TWO_EDITS, _PRIOR_PAIRS = 2, 10
_SHAPES = ((1, 0), (0, 1), (1, 1), (2, 2))
"""Letters of the intended and the typed word in omission, insertion, substitution and swap."""

_Count = Annotated[int, Field(ge=1, le=1 << 40)]
_Edit = Annotated[
    str, StringConstraints(pattern=r"^([^\s>]{2}>[^\s>]{1,2}|[^\s>]>[^\s>]{2}|[^\s>]{3}>[^\s>]{3})$")
]


class CalibrationPoint(StoredDocument):
    """Quality of a threshold.

    `precision` is the share of issues that are errors, `recall` the share of errors
    that are issues.
    """

    threshold: _Share
    precision: _Share
    recall: _Share


class Calibration(StoredDocument):
    """Quality by ascending threshold, measured for the version `model`.

    In the held-out text, one word in `words_per_error` was replaced by an error;
    all `kinds` were equally frequent. Rarer errors lower the precision.
    `corpus_sha256` is the hash of the text, `created` the time (ISO 8601, UTC).
    """

    schema_version: Literal[1] = 1
    model: str
    kinds: list[str]
    words_per_error: Annotated[float, Field(ge=1)]
    points: Annotated[list[CalibrationPoint], Field(min_length=1, max_length=1000)]
    corpus_sha256: str
    created: str

    def threshold_for(self, precision: float) -> float:
        """Return the lowest threshold from which on the precision is at least this value.

        Raises:
            InputError: no threshold reaches it; the message names the highest
                precision.
        """
        first = 1 + max((k for k, one in enumerate(self.points) if one.precision < precision), default=-1)
        if first == len(self.points):
            best = max(point.precision for point in self.points)
            last = self.points[-1]
            raise InputError.of(
                "precision",
                f"is {precision:g}; {self.model} has at most {best:.3f}, and {last.precision:.3f} at its "
                f"highest threshold, {last.threshold:g}",
            )
        return self.points[first].threshold

    def precision_at(self, threshold: float) -> float | None:
        """Precision at a threshold, from the next lower measured one; None below all thresholds."""
        below = [point for point in self.points if point.threshold <= threshold]
        return below[-1].precision if below else None

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        """Raise InputError unless the points are in ascending order of their thresholds."""
        for before, after in pairwise(point.threshold for point in self.points):
            if after <= before:
                problem = f"are not in ascending order: {after:g} follows {before:g}"
                raise InputError.of("points", problem)
        return self


class CalibrationStore(DocumentStore[Calibration]):
    """Calibrations of a registry; see `DocumentStore` for errors."""

    folder, _kind, _what = ".calibrations", Calibration, "calibration"
    _hint, _name = "measure again: gramophone evaluate --task check --save-calibration", "model"

    def read(self, address: str, *, any_version: bool = False) -> Calibration | None:
        """Return the calibration of a version, `name@number`, or None.

        Args:
            address: the version.
            any_version: if it has none, return that of another version of the
                model: the newest older one, else the oldest.
        """
        model, number = _split_address(address)
        found = self._find(address)
        if found is not None or not any_version:
            return found
        others = (name.rpartition("@") for name in self.names())
        numbers = [int(which) for name, _, which in others if name == model and which.isdecimal()]
        best = max(numbers, key=lambda one: (one < number, -abs(one - number)), default=None)
        return None if best is None else self._find(f"{model}@{best}")

    def write(self, calibration: Calibration) -> str | Path:
        """Store a calibration, replacing that of the same version; return its path or URL."""
        _split_address(calibration.model)
        return self._put(calibration.model, calibration)


def _split_address(address: str) -> tuple[str, int]:
    """Return the name and the number of a version.

    Raises:
        InputError: it is no version's address, and so cannot be a file name.
    """
    name, _, number = address.partition("@")
    check_name(name, param="model")
    if not is_version_number(number):
        raise InputError.of("model", f"is {address[:200]!r}; it must be NAME@NUMBER")
    return name, int(number)


class ErrorTable(StoredDocument):
    """Counts of edits in misspellings, without differences of case.

    `edits` are named by the intended and the typed letters, both after the letter
    before, or `^` at the start: `mm>m` omits an m after an m. `contexts` are pairs
    of neighbouring letters of the intended words, with `^` and `$`. `one_edit` and
    `two_edits` are numbers of misspellings. `source_sha256` is the hash of their
    file, `created` the time (ISO 8601, UTC).
    """

    schema_version: Literal[1] = 1
    one_edit: _Count
    two_edits: Annotated[int, Field(ge=0, le=1 << 40)]
    edits: Annotated[dict[_Edit, _Count], Field(min_length=1)]
    contexts: dict[Annotated[str, StringConstraints(pattern=r"^\S{2}$")], _Count]
    source_sha256: str
    created: str

    @cached_property
    def rates(self) -> "ErrorRates":
        """Rates of the edits; computed on first use."""
        return ErrorRates(self)


class ErrorTableStore(DocumentStore[ErrorTable]):
    """Tables of edits in misspellings, by model; see `DocumentStore` for errors."""

    folder, _kind, _what = ".errors", ErrorTable, "table of errors"
    _hint = "fit again: gramophone fit-errors"

    def read(self, address: str) -> ErrorTable | None:
        """Return the table of a model, given its name or a version's address, or None."""
        return self._find(address.partition("@")[0])

    def write(self, model: str, table: ErrorTable) -> str | Path:
        """Store the table of a model, replacing an earlier one; return its path or URL."""
        check_name(model, param="model")
        return self._put(model, table)


def fit_error_table(misspellings: Mapping[str, Sequence[str]], source_sha256: str) -> ErrorTable:
    """Count the edits of misspellings, given by intended word.

    Only words of letters at one edit count; those at two give the share of two
    edits.

    Raises:
        InputError: no misspelling has one edit.
    """
    edits, contexts, distances = Counter[str](), Counter[str](), Counter[int]()
    pairs = ((typed.lower(), right.lower()) for right, wrong in misspellings.items() for typed in wrong)
    for typed, meant in pairs:
        if is_alphabetic(typed) and is_alphabetic(meant):
            distance = OSA.distance(typed, meant)
            distances[distance] += 1
            if distance == 1:
                edits[_edit(typed, meant)] += 1
                contexts.update(map("".join, pairwise(_START + meant + _END)))
    if not edits:
        raise InputError("no misspelling is one edit away from its intended word", param="pairs")
    return ErrorTable(
        one_edit=distances[1],
        two_edits=distances[2],
        edits=dict(sorted(edits.items())),
        contexts=dict(sorted(contexts.items())),
        source_sha256=source_sha256,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _edit(typed: str, meant: str) -> str:
    """Name the only edit between words; the last of equal letters is omitted or inserted."""
    same = Prefix.similarity(typed, meant)
    shift = len(meant) - len(typed)
    a, b = next((a, b) for a, b in _SHAPES if a - b == shift and typed[same + b :] == meant[same + a :])
    before = (_START + meant)[same]
    return f"{before}{meant[same : same + a]}>{before}{typed[same : same + b]}"


class ErrorRates:
    """Probabilities of misspellings by the counts of a table."""

    def __init__(self, table: ErrorTable) -> None:
        frequency = Counter[str]()
        for pair, count in table.contexts.items():
            frequency[pair[1]] += count
        del frequency[_END]
        letters = [letter for letter, _ in frequency.most_common(_MAX_LETTERS)]
        codes = {_START: 0, _END: 0} | {letter: code for code, letter in enumerate(letters, start=_OTHER + 1)}
        # by character; the last one for all others
        self._codes = np.full(max(map(ord, letters), default=0) + 2, _OTHER)
        self._codes[[0, *map(ord, letters)]] = [0, *map(codes.__getitem__, letters)]
        size = len(letters) + 2
        places, swaps = np.zeros((2, size, size))
        counts = np.zeros((size, size, size))
        for pair, count in table.contexts.items():
            places[codes.get(pair[0], _OTHER), codes.get(pair[1], _OTHER)] += count
        for edit, count in table.edits.items():
            meant, typed = ([codes.get(letter, _OTHER) for letter in part] for part in edit.split(">", 1))
            if len(meant) == len(_START) + 2:
                swaps[meant[1], meant[2]] += count
            else:
                counts[meant[0], (*meant, 0)[1], (*typed, 0)[1]] += count
        chances = np.concatenate([places.sum(axis=1, keepdims=True), places[:, 1:]], axis=1)  # 0: insertions
        base = np.zeros((size, size))
        some, none = slice(1, None), slice(0, 1)
        for x, y, spread in ((some, none, 1), (none, some, max(size - 2, 1)), (some, some, max(size - 3, 1))):
            base[x, y] = (counts[:, x, y].sum() + 1) / (chances[:, x].sum() + 1) / spread
        prior = (counts.sum(axis=0) + _PRIOR_PLACES * base) / (chances.sum(axis=0)[:, None] + _PRIOR_PLACES)
        self._rates = (counts + _PRIOR_PLACES * prior) / (chances[:, :, None] + _PRIOR_PLACES)
        average = (swaps.sum() + 1) / (places[1:, 1:].sum() + 1)
        self._swaps = (swaps + _PRIOR_PLACES * average) / (places + _PRIOR_PLACES)
        self._swaps[0], self._swaps[:, 0] = 0, 0
        for same in range(size):
            self._rates[:, same, same] = self._swaps[same, same] = 0
        inserted = self._rates[:, 0].sum(axis=1)
        self._sums = self._rates.sum(axis=2) + inserted[:, None] + self._swaps
        self._sums[:, 0], self._sums[0, 0] = inserted, 0  # at the end, and behind it
        two = (table.two_edits + _PRIOR_TWO_EDITS) / (table.one_edit + table.two_edits + _PRIOR_PAIRS)
        self._log_shares = np.log([1.0, 1 - two, two])

    def gains(self, words: Sequence[tuple[str, str]], edits: Sequence[int]) -> Float64s:
        """Return the probability of misspellings, typed and intended, relative to equally probable edits [N].

        Their mean over a model's words is about 1; 1 for pairs without edits, or
        more than two.
        """
        counts = np.array(edits, np.uint8)
        sizes = np.array([len(intended) for _, intended in words], np.float64)
        # letters left out, swapped, replaced, added
        num_typed = 2 * sizes - 1 + (_ALPHABET - 1) * sizes + _ALPHABET * (sizes + 1)
        of_table = np.exp(self.log_probs(words, counts)) * (num_typed / _WORDS_GAIN) ** counts
        mixed = _SLIPS_SHARE + (1 - _SLIPS_SHARE) * of_table
        return np.where((counts > 0) & (counts <= _MAX_EDITS), mixed, 1.0)

    def log_probs(self, words: Sequence[tuple[str, str]], edits: UInt8s) -> Float64s:
        """Return ln P(typed | intended is misspelt) of pairs at one or two edits [N], by the likeliest edits.

        Minus infinity if, ignoring case, the number of edits differs.
        """
        typed, intended = ([pair[side].lower() for pair in words] for side in (0, 1))
        width = max(map(len, (*typed, *intended)), default=0) + 3
        found, meant = _padded(typed, width, 1), _padded(intended, width, 0)
        new, own = (np.take(self._codes, characters, mode="clip") for characters in (found, meant))
        log_sums = np.log(self._sums[own[:, :-1], own[:, 1:]].sum(axis=1))
        best = np.full(len(typed), -np.inf)
        ends = np.array([[*map(len, intended)], [*map(len, typed)]], np.int64).T + 1
        # partial alignments: pair, positions, edits left, ln P so far
        pairs, left, sums = np.arange(len(typed)), edits.astype(np.int64), np.zeros(len(typed))
        i, j = np.ones_like(pairs), np.ones_like(pairs)
        steps = np.arange(width)
        while len(pairs):
            # skip equal letters; a window ends at the latest in the next word, as the ends of words differ
            windows = (
                np.take(words, (pairs * width + k)[:, None] + steps, mode="clip")
                for words, k in ((meant, i), (found, j))
            )
            run = np.argmax(next(windows) != next(windows), axis=1)
            i, j = i + run, j + run
            rest = ends[pairs] - np.stack([i, j], axis=1)
            done = (left == 0) & ~rest.any(axis=1)
            np.maximum.at(best, pairs[done], sums[done])
            parts = []
            for a, b in _SHAPES:
                after = rest - [a, b]
                fits = (after >= 0).all(axis=1) & (np.abs(after[:, 0] - after[:, 1]) < left)
                p, x, y = pairs[fits], i[fits], j[fits]
                if a > 1:
                    swapped = (meant[p, x] == found[p, y + 1]) & (meant[p, x + 1] == found[p, y])
                    rates = np.where(swapped, self._swaps[own[p, x], own[p, x + 1]], 0.0)
                else:
                    rates = self._rates[own[p, x - 1], own[p, x] if a else 0, new[p, y] if b else 0]
                with np.errstate(divide="ignore"):
                    parts.append((p, x + a, y + b, left[fits] - 1, sums[fits] + np.log(rates) - log_sums[p]))
            pairs, i, j, left, sums = (np.concatenate(column) for column in zip(*parts, strict=True))
        return best + self._log_shares[edits]


def _padded(words: Sequence[str], width: int, padding: int) -> UInt32s:
    """Return the characters of words, each after a zero and before `padding` [N, width]."""
    out = np.full((len(words), width), padding, np.uint32)
    out[:, 0] = 0
    codes, lengths = code_points(words)
    out[:, 1:][np.arange(width - 1) < lengths[:, None]] = codes
    return out


@dataclass(frozen=True, slots=True)
class CandidateSettings:
    """Limits of the candidate search.

    Attributes:
        right_tokens: tokens after a word that its candidates must also explain;
            None: depends on model and tokenizer.
        slack_nats: a candidate is dropped if its left context makes the typed word
            likelier by more than this many nats, which the right context cannot
            make up for.
        max_alternatives: maximum candidates per word that are scored with their
            right context.
        likeliest: number of words that the model predicts, suggested for unknown
            words.
        min_surprisal_bits: minimum surprisal of a word to be searched, for models
            without word tokens.
    """

    right_tokens: int | None = None
    slack_nats: float = 9.0
    max_alternatives: int = 8
    likeliest: int = 5
    min_surprisal_bits: float = 14.0


@dataclass(frozen=True, slots=True)
class GivenSpan:
    """Suggestions by the caller for a span of the text.

    Attributes:
        start: its start, in code points.
        end: its end, not before `start`.
        suggestions: replacement texts, each with ln P(typed | this is intended) by
            the caller's error model, or None for the model of this module. For the
            typed text itself, the log-probability of typing it correctly.
        param: name in the request, for error messages.
    """

    start: int
    end: int
    suggestions: tuple[tuple[str, float | None], ...]
    param: str = "candidates"


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Options for checking one text.

    Attributes:
        error_rate: prior probability that a word is wrong, above 0 and below 1.
        max_edits: maximum edits between the typed and the intended word, 1 or 2:
            insertions, deletions, substitutions or transpositions (optimal string
            alignment).
        search: limits of the candidate search.
        dictionary: correct words of the request.
        given: the caller's suggestions, with their positions.
        errors: edits counted in misspellings; None: all edits are equally probable.
    """

    error_rate: float = 0.01
    max_edits: int = 2
    search: CandidateSettings = field(default_factory=CandidateSettings)
    dictionary: UserDictionary = field(default_factory=UserDictionary)
    given: tuple[GivenSpan, ...] = ()
    errors: ErrorTable | None = None


class ErrorModel:
    """Log-probabilities of typing errors."""

    def __init__(self, settings: CheckSettings) -> None:
        self.settings = settings
        self.log_correct = log(1 - settings.error_rate)
        self.log_error = log(settings.error_rate)
        self.log_space_error = self.log_error + log(_SPACE_SHARE)
        self.log_unknown = log(_UNKNOWN_RATE)
        self.log_far_error = self.log_error + log(_FAR_SHARE)
        self._log_shares = np.log([1.0, 1 - _TWO_EDITS_SHARE, _TWO_EDITS_SHARE])  # by edits
        self._log_neighbours = log(_NEIGHBOURS)
        self._log_weights = np.log([1.0, 1.0, _TWO_EDITS_WEIGHT])

    def max_edits(self, word: str, *, known: bool) -> int:
        """Return the maximum edits for a typed word: 1 for short ones, else that of the settings."""
        fewest = _TWO_EDITS_LETTERS if known else _TWO_EDITS_LETTERS_UNKNOWN
        return 1 if len(word) < fewest else self.settings.max_edits

    def known_word_log_probs(self, edits: UInt8s) -> Float64s:
        """Return ln P(typed | intended) of a typed vocabulary word, by edits of intended ones [N]."""
        return self.log_error + self._log_weights[edits] - self._log_neighbours

    def unknown_word_log_probs(self, edits: UInt8s, lengths: Int64s) -> Float64s:
        """Return ln P(typed | intended) of a typed unknown word, by edits and length of intended ones [N]."""
        # deletions, swaps, substitutions, insertions
        log_count = np.log(2 * lengths * _ALPHABET + _ALPHABET + lengths)
        spread: Float64s = self.log_error + self._log_shares[edits] - edits * log_count
        return spread

    def log_ratios(self, pairs: Sequence[tuple[str, str]], edits: UInt8s, known: Bools) -> Float64s:
        """Return what the table of edits adds to ln P(typed | intended), for pairs of both words [N]."""
        ratios = np.zeros(len(pairs))
        if self.settings.errors is None or not pairs:
            return ratios
        lengths = np.array([[len(typed), len(intended)] for typed, intended in pairs])
        rows = np.flatnonzero((lengths <= _MAX_FITTED_LETTERS).all(axis=1) & ~(known & (edits > 1)))
        fitted = self.settings.errors.rates.log_probs([pairs[row] for row in rows.tolist()], edits[rows])
        gains = fitted + self.log_error - self.unknown_word_log_probs(edits[rows], lengths[rows, 1])
        mixed = np.logaddexp(gains + log(1 - _SLIPS_SHARE), log(_SLIPS_SHARE))
        mixed -= known[rows] * log(_WORDS_GAIN)
        ratios[rows] = np.where(np.isfinite(fitted), mixed, 0.0)
        return ratios
