"""Interface of metrics: counts that add up over a corpus, text normalisers, and signatures.

A signature states the settings of a metric in sacrebleu's form, so that scores can be compared.
"""

import unicodedata
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError

Statistics: TypeAlias = npt.NDArray[np.int64]
"""Counts whose sum over segments gives the counts of a corpus [..., S]."""


class Metric(Protocol):
    """Corpus-level metric with additive sufficient statistics."""

    @property
    def name(self) -> str:
        """Name: `wer`, `cer`, `bleu` or `chrf`."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """True if a larger score is better; False for error rates."""
        ...

    @property
    def signature(self) -> str:
        """Settings of the metric; sacrebleu's own signature for `bleu` and `chrf`."""
        ...

    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        """Count the statistics of each text against one input's references.

        Args:
            texts: hypotheses for one input [C].
            references: alternative references; at least one.

        Returns:
            [C, S]; S depends on the metric only.

        Raises:
            InvalidInputError: there is no reference.
        """
        ...

    def score(self, totals: Statistics) -> npt.NDArray[np.float64]:
        """Compute the score in percent, such as a WER of 15.44 or a BLEU of 34.47.

        Args:
            totals: statistics, summed over segments [..., S].

        Returns:
            [...]; always finite.
        """
        ...


def format_score(metric: str, score: float) -> str:
    """Format a score by the name of its metric: `25.33 %` for error rates, `34.47` for BLEU and chrF."""
    return f"{score:.2f} %" if metric in {"wer", "cer"} else f"{score:.2f}"


def check_references(references: Sequence[str]) -> None:
    """Refuse an input without references.

    Raises:
        InvalidInputError: there is none.
    """
    if not references:
        raise InvalidInputError("references has 0 texts; it must have at least 1", parameter="references")


UNCHANGED = "none"


class _WithoutPunctuation(dict[int, int | None]):
    """Table for `str.translate` that looks up a character's category on first use."""

    def __missing__(self, character: int) -> int | None:
        replacement = None if unicodedata.category(chr(character)).startswith("P") else character
        self[character] = replacement
        return replacement


_WITHOUT_PUNCTUATION = _WithoutPunctuation()


def _lower_unpunctuated(text: str) -> str:
    return text.lower().translate(_WITHOUT_PUNCTUATION)


NORMALISERS: dict[str, Callable[[str], str]] = {
    UNCHANGED: str,
    "lower": str.lower,
    "lower-unpunctuated": _lower_unpunctuated,
}
"""`lower-unpunctuated` also removes all Unicode punctuation, so `don't` becomes `dont`."""
