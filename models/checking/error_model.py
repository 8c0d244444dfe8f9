"""Error model of the noisy channel, and the settings of checking.

If the model knows the typed word, the error rate of the intended word is spread over the words near
it, by edit distance (Mays, Damerau and Mercer 1991; Wilcox-O'Hearn, Hirst and Budanitsky 2008):
only an error that makes a word can have made it. The number of near words is taken to be the same
for all words. If the model does not know it, the error rate is spread over the strings that an
error can make of the intended word.
"""

from dataclasses import dataclass, field
from math import log

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError

_TWO_EDITS_LETTERS = 5
"""Words with fewer letters are looked for within one edit only: two make of them any other."""
_TWO_EDITS_LETTERS_UNKNOWN = 3
"""The same of words that the model does not know."""
_TWO_EDITS_SHARE = 0.2
"""Of misspellings, those of two edits. Four in five have one (Damerau 1964)."""
_NEIGHBOURS = 8
"""Words that an error can make of a word, on the average."""
_TWO_EDITS_WEIGHT = 0.01
"""Of a word of the vocabulary two edits away, where one that is one edit away has weight 1."""
_SPACE_SHARE = 0.1
"""Of errors, a space too many or too few."""
_FAR_SHARE = 1e-9
"""Of errors that make an unknown word, those with nothing in common with what was meant. So small that it only orders
suggestions, and makes no name look wrong."""
_UNKNOWN_RATE = 1e-3
"""Of words, those that a model does not know, at least, whatever the model expects."""
_ALPHABET = 26
"""Letters that a typing error may hit."""


@dataclass(frozen=True, slots=True)
class CandidateSettings:
    """Limits of the search.

    Attributes:
        right_tokens: tokens after a word that its alternatives must explain too; None: by the model and its tokens.
        slack_nats: an alternative is dropped if, from the left alone, the typed word is likelier by a factor of e to
            this power: more than the right context makes good.
        max_alternatives: of one word that are weighed with their right context.
        likeliest: words that the model expects, told as suggestions for unknown words.
        min_surprisal_bits: of models without word tokens, a word that surprises less is not searched for errors.
        max_searched_words: of the sentences that are looked at together, some five hundred tokens, the most surprising
            words that are.
        max_spellings: strings near a word that are looked at, those whose characters go together best.
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
    """A caller's suggestions for a span of the text.

    Attributes:
        start: where it begins, in code points.
        end: where it ends; not before `start`.
        suggestions: texts to stand there, each with the natural logarithm of the probability to type what was typed
            when it is meant, by the caller's own error model, or None for ours. With the typed text itself it says how
            likely that is to be typed rightly.
        parameter: the span's name in the request, for messages.
    """

    start: int
    end: int
    suggestions: tuple[tuple[str, float | None], ...]
    parameter: str = "candidates"


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Options of checking one text.

    Attributes:
        error_rate: the probability that a word is not the one that was meant, before the text is seen.
        max_edits: how far a typed word may be from the one that was meant: 1 or 2 insertions, deletions,
            substitutions or swaps of neighbours (optimal string alignment).
        search: how far to look.
        dictionary: words that are right, in lower case, and as they are to be suggested.
        given: the caller's suggestions, by their place in the text.

    Raises:
        InvalidInputError: the rate or the number of edits is outside its limits.
    """

    error_rate: float = 0.01
    max_edits: int = 2
    search: CandidateSettings = field(default_factory=CandidateSettings)
    dictionary: dict[str, str] = field(default_factory=dict)
    given: tuple[GivenSpan, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.error_rate < 1:
            raise InvalidInputError(
                f"error_rate is {self.error_rate}, it must lie between 0 and 1", parameter="error_rate"
            )
        if self.max_edits not in {1, 2}:
            raise InvalidInputError(f"max_edits is {self.max_edits}, it can be 1 or 2", parameter="max_edits")


class ErrorModel:
    """Log-probabilities of typing errors.

    Args:
        settings: what is believed of errors.
    """

    def __init__(self, settings: CheckSettings) -> None:
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
        """Maximum edits of the search for a typed word; an unknown word may be short."""
        fewest = _TWO_EDITS_LETTERS if known else _TWO_EDITS_LETTERS_UNKNOWN
        return 1 if len(word) < fewest else self._max_edits

    def known_word_log_probs(self, edits: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """Of a typed word of the vocabulary: for each word near it [N], ln P(typed | that was meant)."""
        spread: npt.NDArray[np.float64] = self.log_error + self._log_weights[edits] - self._log_neighbours
        return spread

    def unknown_word_log_probs(
        self, edits: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Of a typed string that is no word: for each word near it [N] and its length, ln P(typed | that was meant)."""
        # deletions, swaps, substitutions, insertions
        log_num_strings = np.log(2 * lengths * _ALPHABET + _ALPHABET + lengths)
        spread: npt.NDArray[np.float64] = self.log_error + self._log_shares[edits] - edits * log_num_strings
        return spread

    def given_log_prob(self, count: int) -> float:
        """Of one of so many suggestions of a caller that has no error model: ln P(typed | that was meant)."""
        return self.log_error - log(count)
