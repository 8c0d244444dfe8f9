"""Significance of a difference between two systems: paired bootstrap resampling (Koehn 2004)."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.reranking.metrics.metric import Metric, Statistics

MAX_SAMPLES = 100_000
_MAX_DRAWS = 1 << 21  # some 50 MB
_INTERVAL_PERCENT = (2.5, 97.5)


class BootstrapTest(NamedTuple):
    """A difference in score, and how sure it is.

    Attributes:
        difference: score of b less that of a, in percent points.
        p_value: how probable a difference at least as large, either way, would be if there were none.
        low: lower end of the difference's 95 % interval.
        high: upper end.
    """

    difference: float
    p_value: float
    low: float
    high: float


def paired_bootstrap(
    metric: Metric, stats_a: Statistics, stats_b: Statistics, *, samples: int = 1000, seed: int = 12345
) -> BootstrapTest:
    """Compare two systems on the same segments, resampled with replacement.

    The p-value is two-sided: the share of samples whose difference is as far from the samples' mean as the observed
    one is from 0, itself counted among them (shift method; Riezler & Maxwell 2005). sacrebleu's test folds
    differences by their absolute value first, and so gives about half of it.

    Args:
        metric: makes scores of summed statistics.
        stats_a: of the baseline's segments [N, S].
        stats_b: of the other system's [N, S].
        samples: how many.
        seed: of the draws; equal seeds give equal results.

    Raises:
        InvalidInputError: there is no segment, the two do not have the same shape, or `samples` is out of range.
    """
    if stats_a.shape != stats_b.shape or stats_a.ndim != 2 or not len(stats_a):
        raise InvalidInputError(
            f"statistics have the shapes {list(stats_a.shape)} and {list(stats_b.shape)}; "
            "they must be the same [N, S] with at least 1 segment"
        )
    if not 1 <= samples <= MAX_SAMPLES:
        raise InvalidInputError(
            f"samples is {samples}; it must be from 1 to {MAX_SAMPLES}", parameter="samples"
        )
    both = np.stack([stats_a, stats_b])
    score_a, score_b = metric.score(both.sum(axis=1)).tolist()
    scores = resampled_scores(metric, both, samples=samples, seed=seed)
    return bootstrap_difference(score_b - score_a, scores[:, 1] - scores[:, 0])


def bootstrap_difference(observed: float, resampled: npt.NDArray[np.float64]) -> BootstrapTest:
    """Judge a difference in score by those of resamples [samples]."""
    by_chance = np.abs(resampled - resampled.mean()) >= abs(observed)
    low, high = np.percentile(resampled, _INTERVAL_PERCENT).tolist()
    return BootstrapTest(observed, (int(by_chance.sum()) + 1) / (len(resampled) + 1), low, high)


def resampled_scores(
    metric: Metric, stats: Statistics, *, samples: int, seed: int
) -> npt.NDArray[np.float64]:
    """Scores of systems on segments drawn with replacement, the same for all of them.

    Args:
        metric: makes scores of summed statistics.
        stats: of K systems' N segments [K, N, S].
        samples: how many.
        seed: of the draws.

    Returns:
        [samples, K].
    """
    systems, segments, width = stats.shape
    by_segment = stats.transpose(1, 0, 2).reshape(segments, systems * width).astype(np.float64)
    rng = np.random.default_rng(seed)
    draws_per_block = max(1, _MAX_DRAWS // segments)
    scores = []
    for begin in range(0, samples, draws_per_block):
        draws = rng.integers(segments, size=(min(draws_per_block, samples - begin), segments))
        cells = draws + segments * np.arange(len(draws))[:, None]
        times_drawn = np.bincount(cells.ravel(), minlength=draws.size).reshape(draws.shape)
        # a product in double precision: exact below 2 ** 53, and much faster than picking rows
        totals = np.rint(times_drawn.astype(np.float64) @ by_segment).astype(np.int64)
        scores.append(metric.score(totals.reshape(-1, systems, width)))
    return np.concatenate(scores)
