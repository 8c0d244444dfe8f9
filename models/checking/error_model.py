"""Error model of the noisy channel, and the settings of checking.

If the model knows the typed word, the error rate of the intended word is divided among the words near
it, by edit distance (Mays, Damerau and Mercer 1991; Wilcox-O'Hearn, Hirst and Budanitsky 2008):
only errors that produce a word are possible. The number of near words is assumed to be the same for
all words. If the model does not know the typed word, the error rate is divided among the strings that
an error can make from the intended word.

A fitted table of edits (`models.checking.error_table`) replaces the uniform distribution over these strings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np
import numpy.typing as npt

from models.checking.error_table import ErrorTable
from models.checking.lexicon import HunspellDictionary
from models.errors import InvalidInputError

_TWO_EDITS_LETTERS = 5
"""Minimum letters of a word for two edits; with fewer letters, two edits lead to too many words."""
_TWO_EDITS_LETTERS_UNKNOWN = 3
"""The same limit for unknown words."""
_TWO_EDITS_SHARE = 0.2
"""Share of misspellings with two edits; four in five have one (Damerau 1964)."""
_NEIGHBOURS = 8
"""Average number of words that an error can make from a word."""
_TWO_EDITS_WEIGHT = 0.01
"""Weight of a vocabulary word two edits away, relative to a word one edit away."""
_SPACE_SHARE = 0.1
"""Share of errors that add or omit a space."""
_FAR_SHARE = 1e-9
"""Share of the errors that produce an unknown word unrelated to the intended one. The small value only orders
suggestions; it does not flag names."""
_UNKNOWN_RATE = 1e-3
"""Minimum prior probability of unknown words, whatever the model predicts."""
_ALPHABET = 26
"""Number of letters that a typing error can produce."""
_SLIPS_SHARE = 0.05
"""Share of errors whose edits are equally probable, whatever the table of edits says."""
_WORDS_GAIN = 2.6
"""Mean of the table's probability relative to equal ones for vocabulary words one edit apart: 2.5 to 2.8 by the
frequencies of 10,000 to 300,000 words, with codespell's misspellings. Real-word errors stay as frequent."""
_MAX_FITTED_LETTERS = 40
"""Maximum letters of words for which the table is used."""


@dataclass(frozen=True, slots=True)
class CandidateSettings:
    """Limits of the candidate search.

    Attributes:
        right_tokens: tokens after a word that its candidates must also explain; None: depends on model and tokenizer.
        slack_nats: a candidate is dropped if its left context makes the typed word likelier by more than this many
            nats, which the right context cannot make up for.
        max_alternatives: maximum candidates per word that are scored with their right context.
        likeliest: number of words that the model predicts, suggested for unknown words.
        min_surprisal_bits: minimum surprisal of a word to be searched, for models without word tokens.
        max_searched_words: maximum words searched per batch of sentences (about 500 tokens), by descending surprisal,
            for models without word tokens.
        max_spellings: maximum strings near a word that are tried, by the probability of their characters.
    """

    right_tokens: int | None = None
    slack_nats: float = 9.0
    max_alternatives: int = 8
    likeliest: int = 5
    min_surprisal_bits: float = 14.0
    max_searched_words: int = 32
    max_spellings: int = 96


@dataclass(frozen=True, slots=True)
class GivenSpan:
    """Suggestions by the caller for a span of the text.

    Attributes:
        start: its start, in code points.
        end: its end, not before `start`.
        suggestions: replacement texts, each with ln P(typed | this is intended) by the caller's error model, or None
            for the error model of this module. For the typed text itself, it is the log-probability of typing it
            correctly.
        parameter: name of the span in the request, for error messages.
    """

    start: int
    end: int
    suggestions: tuple[tuple[str, float | None], ...]
    parameter: str = "candidates"


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Options for checking one text.

    Attributes:
        error_rate: prior probability that a word is wrong.
        max_edits: maximum edits between the typed and the intended word, 1 or 2: insertions, deletions,
            substitutions or transpositions (optimal string alignment).
        search: limits of the candidate search.
        dictionary: suggested spelling of correct words, by their `dictionary_key`.
        given: the caller's suggestions, with their positions.
        word_lists: dictionaries of words that are right if the model does not know them.
        errors: edits counted in misspellings; None: all edits are equally probable.

    Raises:
        InvalidInputError: the error rate or the number of edits is out of range.
    """

    error_rate: float = 0.01
    max_edits: int = 2
    search: CandidateSettings = field(default_factory=CandidateSettings)
    dictionary: dict[str, str] = field(default_factory=dict)
    given: tuple[GivenSpan, ...] = ()
    word_lists: tuple[HunspellDictionary, ...] = ()
    errors: ErrorTable | None = None

    def __post_init__(self) -> None:
        if not 0 < self.error_rate < 1:
            raise InvalidInputError(
                f"error_rate is {self.error_rate}; it must be between 0 and 1", parameter="error_rate"
            )
        if self.max_edits not in {1, 2}:
            raise InvalidInputError(f"max_edits is {self.max_edits}; must be 1 or 2", parameter="max_edits")


class ErrorModel:
    """Log-probabilities of typing errors.

    Args:
        settings: error rate and maximum edits.
    """

    def __init__(self, settings: CheckSettings) -> None:
        self.errors = settings.errors
        self._max_edits = settings.max_edits
        self.log_correct = log(1 - settings.error_rate)
        self.log_error = log(settings.error_rate)
        self.log_space_error = self.log_error + log(_SPACE_SHARE)
        self.log_unknown = log(_UNKNOWN_RATE)
        self.log_far_error = self.log_error + log(_FAR_SHARE)
        self._log_shares = np.log([1.0, 1 - _TWO_EDITS_SHARE, _TWO_EDITS_SHARE])  # by edits
        self._log_neighbours = log(_NEIGHBOURS)
        self._log_weights = np.log([1.0, 1.0, _TWO_EDITS_WEIGHT])

    def max_edits(self, word: str, *, known: bool) -> int:
        """Return the maximum edits for a typed word: 1 for a short word, otherwise that of the settings."""
        fewest = _TWO_EDITS_LETTERS if known else _TWO_EDITS_LETTERS_UNKNOWN
        return 1 if len(word) < fewest else self._max_edits

    def known_word_log_probs(self, edits: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """Return ln P(typed | intended) of a typed vocabulary word, for intended words by edit distance [N]."""
        return self.log_error + self._log_weights[edits] - self._log_neighbours

    def unknown_word_log_probs(
        self, edits: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return ln P(typed | intended) of a typed unknown word, for intended words by edits and length [N]."""
        # deletions, swaps, substitutions, insertions
        log_num_strings = np.log(2 * lengths * _ALPHABET + _ALPHABET + lengths)
        spread: npt.NDArray[np.float64] = self.log_error + self._log_shares[edits] - edits * log_num_strings
        return spread

    def log_ratios(
        self, pairs: Sequence[tuple[str, str]], edits: npt.NDArray[np.uint8], known: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float64]:
        """Return what the table of edits adds to ln P(typed | intended) of pairs of typed and intended words [N]."""
        ratios = np.zeros(len(pairs))
        if self.errors is None or not pairs:
            return ratios
        lengths = np.array([[len(typed), len(intended)] for typed, intended in pairs])
        rows = np.flatnonzero((lengths <= _MAX_FITTED_LETTERS).all(axis=1) & ~(known & (edits > 1)))
        fitted = self.errors.rates.log_probs([pairs[row] for row in rows.tolist()], edits[rows])
        gains = fitted + self.log_error - self.unknown_word_log_probs(edits[rows], lengths[rows, 1])
        mixed = np.logaddexp(gains + log(1 - _SLIPS_SHARE), log(_SLIPS_SHARE)) - known[rows] * log(
            _WORDS_GAIN
        )
        ratios[rows] = np.where(np.isfinite(fitted), mixed, 0.0)
        return ratios

    def given_log_prob(self, count: int) -> float:
        """Return ln P(typed | intended) for each of `count` suggestions without an error model."""
        return self.log_error - log(count)
