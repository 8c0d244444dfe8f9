"""What every metric is: counts that add up over a corpus, and a score made of the sums."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError

Statistics: TypeAlias = npt.NDArray[np.int64]
"""Counts of which those of a corpus are the sum of those of its segments [..., S]."""


class Metric(Protocol):
    """A corpus-level metric by its sufficient statistics."""

    @property
    def name(self) -> str:
        """`wer`, `cer`, `bleu` or `chrf`."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is better; not so for error rates."""
        ...

    @property
    def signature(self) -> str:
        """Exactly what is counted; sacrebleu's own signature for `bleu` and `chrf`."""
        ...

    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        """Counts of each text against one input's references.

        Args:
            texts: hypotheses for one input [C].
            references: several ways to say what is right; at least one.

        Returns:
            [C, S]; S is the metric's own, and the same for all texts.

        Raises:
            InvalidInputError: there is no reference.
        """
        ...

    def score(self, totals: Statistics) -> npt.NDArray[np.float64]:
        """Percent, such as a WER of 15.44 or a BLEU of 34.47.

        Args:
            totals: statistics, summed over segments [..., S].

        Returns:
            [...]; always finite.
        """
        ...


def check_references(references: Sequence[str]) -> None:
    """Refuse an input without references.

    Raises:
        InvalidInputError: there is none.
    """
    if not references:
        raise InvalidInputError("references has 0 texts; it must have at least 1", parameter="references")
