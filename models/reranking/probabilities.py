"""Scores that seem to be probabilities, where natural logarithms are meant."""

import re
from collections.abc import Iterable, Iterator

from models.reranking.lists import CandidateList

_SCORE = re.compile(
    r"(?:old_|hyp_|asr_)?(?:(?:am|lm|ac|acoustic|language|graph|nn|rnn)(?:_model)?(?:_score)?|score|total|log_?prob)s?"
)
"""Names of what models and decoders give; what is called a posterior or a confidence may be one."""


class ScoreRanges:
    """Between which numbers the scores of lists lie, by feature; zeros are left out, as products underflow to them."""

    def __init__(self) -> None:
        self._ranges: dict[str, tuple[float, float]] = {}

    def watch(self, lists: Iterable[CandidateList]) -> Iterator[CandidateList]:
        """The same lists, looked at."""
        for one in lists:
            for candidate in one.candidates:
                for name, value in candidate.features.items():
                    if value:
                        low, high = self._ranges.get(name, (value, value))
                        self._ranges[name] = min(low, value), max(high, value)
            yield one

    def warnings(self) -> Iterator[str]:
        """A sentence for each score all of whose values lie above 0 and up to 1, and not all at 1."""
        for name, (low, high) in sorted(self._ranges.items()):
            if 0 < low < 1 and high <= 1 and _SCORE.fullmatch(name.lower()):
                yield (
                    f"all values of {name} lie between {low:.3g} and {high:.3g}, so they look like probabilities; "
                    "natural logarithms are expected: replace each by its logarithm"
                )
