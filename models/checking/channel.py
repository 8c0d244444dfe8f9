"""The error model: how probable what was typed is when a word was meant.

Of a typed word that the model knows, the error rate of what was meant is spread over the words near that, by how near
they are (Mays, Damerau and Mercer 1991; Wilcox-O'Hearn, Hirst and Budanitsky 2008): only an error that makes a word can
have made it. How many are near is taken to be the same for all words. Of one that it does not know, the error rate is
spread over the strings that an error can make of what was meant.
"""

from math import log

import numpy as np
import numpy.typing as npt

from models.checking.settings import ErrorSettings


class ErrorModel:
    """Log-probabilities of typing errors.

    Args:
        settings: what is believed of errors.
    """

    def __init__(self, settings: ErrorSettings) -> None:
        self.settings = settings
        self.log_correct = log(1 - settings.error_rate)
        self.log_error = log(settings.error_rate)
        self.log_space_error = self.log_error + log(settings.space_share)
        self.log_unknown = log(settings.unknown_rate)
        self.log_far_error = self.log_error + log(settings.far_share)
        shares = (1 - settings.two_edits_share, settings.two_edits_share)
        self._log_shares = np.log([1.0, *shares])  # by edits
        self._log_neighbours = log(settings.neighbours)
        self._log_weights = np.log([1.0, 1.0, settings.two_edits_weight])

    def max_edits(self, word: str, *, known: bool) -> int:
        """How many edits a typed word is searched within; one that is no word may be short."""
        fewest = self.settings.two_edits_letters if known else self.settings.two_edits_letters_unknown
        return 1 if len(word) < fewest else self.settings.max_edits

    def known_word_log_probs(self, edits: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
        """Of a typed word of the vocabulary: for each word near it [N], ln P(typed | that was meant)."""
        spread: npt.NDArray[np.float64] = self.log_error + self._log_weights[edits] - self._log_neighbours
        return spread

    def unknown_word_log_probs(
        self, edits: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Of a typed string that is no word: for each word near it [N] and its length, ln P(typed | that was meant)."""
        spread: npt.NDArray[np.float64] = (
            self.log_error + self._log_shares[edits] - edits * self._log_num_strings(lengths)
        )
        return spread

    def given_log_prob(self, count: int) -> float:
        """Of one of so many suggestions of a caller that has no error model: ln P(typed | that was meant)."""
        return self.log_error - log(count)

    def _log_num_strings(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Logarithm of how many strings are one edit from a word: deletions, swaps, substitutions, insertions."""
        letters = self.settings.alphabet
        counts: npt.NDArray[np.float64] = np.log(2 * lengths * letters + letters + lengths)
        return counts
