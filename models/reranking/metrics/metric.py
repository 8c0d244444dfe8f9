"""Interface of metrics, word and character error rates, and the significance of differences.

Metrics are counts that add up over a corpus. A signature states a metric's settings in sacrebleu's
form, so that scores can be compared. Error rates are edits in percent of the reference's words or
characters: substitutions, deletions and insertions cost 1 each. Sequences are strings, one character
per unit: rapidfuzz compares 64 units at once (Hyyrö 2003). Significance is by paired bootstrap
resampling (Koehn 2004).
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist
from typing_extensions import override

from models.arrays import Float64s, Int32s, Int64s
from models.calls import Steps, map_in_steps, run_to_completion
from models.errors import InputError
from models.files import split_words

Statistics: TypeAlias = Int64s
"""Counts whose sum over segments gives the counts of a corpus [..., S]."""

METRIC_TITLES = {"wer": "word error rate", "cer": "character error rate", "bleu": "BLEU", "chrf": "chrF"}
"""Names of metrics for people."""

UNCHANGED = "none"

MAX_SAMPLES = 100_000
_DRAWS_PER_STEP = 1 << 14
_INTERVAL_PERCENT = (2.5, 97.5)

_RUN = re.compile(r"\s\s+")
_MAX_DISTINCT_WORDS = 0x110000  # number of code points


@dataclass(frozen=True, slots=True)
class Metric(ABC):
    """Corpus-level metric with additive sufficient statistics.

    Attributes:
        name: `wer`, `cer`, `bleu` or `chrf`.
        num_references: references per input, only for the signature; None if it varies.
        higher_is_better: True if a larger score is better; False for error rates.
    """

    name: str
    num_references: int | None = 1
    higher_is_better: ClassVar[bool] = True

    @property
    def signature(self) -> str:
        """Settings of the metric; sacrebleu's own signature for `bleu` and `chrf`."""
        references = "var" if self.num_references is None else self.num_references
        return f"nrefs:{references}|{self._settings}"

    @property
    @abstractmethod
    def _settings(self) -> str:
        """Settings, without the number of references."""

    def statistics(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        """Count each text's statistics against one input's references.

        Args:
            texts: hypotheses for one input [C].
            references: alternative references; at least one.

        Returns:
            [C, S]; S depends on the metric only.

        Raises:
            InputError: there is no reference.
        """
        if not references:
            raise InputError.of("references", "has 0 texts; it must have at least 1")
        return self.count(texts, references)

    @abstractmethod
    def count(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        """Count each text's statistics against at least one reference; see `statistics`."""

    @abstractmethod
    def score(self, totals: Statistics) -> Float64s:
        """Compute the score in percent, such as a WER of 15.44 or a BLEU of 34.47.

        Args:
            totals: statistics, summed over segments [..., S].

        Returns:
            [...]; always finite.
        """


def format_score(metric: str, score: float) -> str:
    """Format a score: `25.33 %` for error rates, `34.47` for BLEU and chrF."""
    return f"{score:.2f} %" if metric in {"wer", "cer"} else f"{score:.2f}"


class _WithoutPunctuation(dict[int, int | None]):
    """Table for `str.translate`; looks up a category on first use."""

    def __missing__(self, character: int) -> int | None:
        new = None if unicodedata.category(chr(character)).startswith("P") else character
        self[character] = new
        return new


_WITHOUT_PUNCTUATION = _WithoutPunctuation()


NORMALISERS: dict[str, Callable[[str], str]] = {
    UNCHANGED: str,
    "lower": str.lower,
    "lower-unpunctuated": lambda text: text.lower().translate(_WITHOUT_PUNCTUATION),
}
"""`lower-unpunctuated` also removes all Unicode punctuation, so `don't` becomes `dont`."""


@dataclass(frozen=True, slots=True)
class SignificanceResult:
    """Result of a paired bootstrap.

    Attributes:
        difference: score of the tried weights minus the baseline.
        p_value: probability of a difference this large by chance.
        low: lower end of the difference's 95 % interval.
        high: upper end of the interval.
    """

    difference: float
    p_value: float
    low: float
    high: float


def paired_bootstrap(
    metric: Metric, before: Statistics, after: Statistics, *, samples: int, seed: int
) -> Steps[SignificanceResult]:
    """Compare two systems on the same segments, resampled with replacement, in steps.

    The p-value is two-sided: the share of samples, with the observed one, whose difference is as far from
    the samples' mean as the observed one is from 0 (shift method; Riezler & Maxwell 2005). sacrebleu's test
    first takes absolute values of the differences, and so gives about half of it.

    Args:
        metric: computes scores from summed statistics.
        before: statistics of the baseline's segments [N, S], N ≥ 1.
        after: statistics of the other system's segments [N, S].
        samples: number of samples, at least 1.
        seed: random seed; equal seeds give equal results.
    """
    both = np.stack([before, after])
    score_before, score_after = metric.score(both.sum(axis=1)).tolist()
    step = max(1, _DRAWS_PER_STEP // len(before))
    seeds = np.random.default_rng(seed)
    gains = []
    for begin in range(0, samples, step):
        count = min(step, samples - begin)
        scores = resampled_scores(metric, both, samples=count, seed=int(seeds.integers(1 << 62)))
        gains.append(scores[:, 1] - scores[:, 0])
        yield
    observed, drawn = score_after - score_before, np.concatenate(gains)
    by_chance = np.abs(drawn - drawn.mean()) >= abs(observed)
    low, high = np.percentile(drawn, _INTERVAL_PERCENT).tolist()
    return SignificanceResult(observed, (int(by_chance.sum()) + 1) / (samples + 1), low, high)


def resampled_scores(metric: Metric, stats: Statistics, *, samples: int, seed: int) -> Float64s:
    """Score systems on resampled segments, the same for all.

    Args:
        metric: computes scores from summed statistics.
        stats: statistics of K systems' N segments [K, N, S].
        samples: number of samples.
        seed: random seed.

    Returns:
        [samples, K].
    """
    systems, segments, width = stats.shape
    by_segment = stats.transpose(1, 0, 2).reshape(segments, systems * width).astype(np.float64)
    draws = np.random.default_rng(seed).integers(segments, size=(samples, segments))
    cells = draws + segments * np.arange(samples)[:, None]
    times_drawn = np.bincount(cells.ravel(), minlength=draws.size).reshape(draws.shape)
    # a float64 matrix product: exact below 2 ** 53, much faster than gathering rows
    totals = np.rint(times_drawn.astype(np.float64) @ by_segment).astype(np.int64)
    return metric.score(totals.reshape(samples, systems, width))


def words_as_characters(texts: Iterable[Sequence[str]]) -> Steps[list[str]]:
    """Encode texts as strings with one character per word, consistently, in bounded steps.

    String algorithms can then compare words.

    Raises:
        InputError: more distinct words than characters.
    """
    character_of = _WordCharacters()
    return map_in_steps(texts, lambda words: "".join(map(character_of.__getitem__, words)), size=len)


class _WordCharacters(dict[str, str]):
    """Characters by word, assigned in order of lookups."""

    def __missing__(self, word: str) -> str:
        if len(self) == _MAX_DISTINCT_WORDS:
            raise InputError(
                f"the texts of a list have more than {_MAX_DISTINCT_WORDS} distinct words, the maximum for a "
                "comparison"
            )
        return self.setdefault(word, chr(len(self)))


def pairwise_distances(texts: Sequence[str], references: Sequence[str]) -> Int32s:
    """Compute the edit distance of each text from each reference [C, R]."""
    if not texts or not references:
        return np.zeros((len(texts), len(references)), np.int32)
    return cdist(texts, references, scorer=Levenshtein.distance, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class ErrorRate(Metric):
    """Word or character error rate; statistics are errors and reference units.

    Words are separated by ASCII white space and, as in jiwer, by two or more characters of any white space;
    characters are code points of the stripped text, including spaces. The errors are those against the
    reference with the fewest edits, of equal ones the longest, which gives the lowest rate. An empty
    reference counts as one unit.

    Attributes:
        normaliser: one of `NORMALISERS`.
    """

    normaliser: str = UNCHANGED
    higher_is_better = False

    @property
    @override
    def _settings(self) -> str:
        return f"units:{'words' if self.name == 'wer' else 'characters'}|normaliser:{self.normaliser}"

    @override
    def count(self, texts: Sequence[str], references: Sequence[str]) -> Statistics:
        normalised = map(NORMALISERS[self.normaliser], (*texts, *references))
        strings = [text.strip() for text in normalised]
        if self.name == "wer":
            strings = run_to_completion(
                words_as_characters(split_words(_RUN.sub(" ", text)) for text in strings)
            )
        right = strings[len(texts) :]
        errors = pairwise_distances(strings[: len(texts)], right).astype(np.int64)
        lengths = np.fromiter(map(len, right), np.int64, len(right))
        chosen = (errors * (lengths.max() + 1) - lengths).argmin(axis=1)
        return np.stack([errors[np.arange(len(texts)), chosen], lengths[chosen]], axis=1)

    @override
    def score(self, totals: Statistics) -> Float64s:
        return 100.0 * totals[..., 0] / np.maximum(totals[..., 1], 1)
