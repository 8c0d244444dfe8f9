"""Significance of a difference between two systems: paired bootstrap resampling (Koehn 2004)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.reranking.candidates import Steps
from models.reranking.metrics.metric import Metric, Statistics

MAX_SAMPLES = 100_000
_DRAWS_PER_STEP = 1 << 14
_INTERVAL_PERCENT = (2.5, 97.5)


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

    The p-value is two-sided: the share of samples, including the observed one, whose difference is as far from the
    samples' mean as the observed difference is from 0 (shift method; Riezler & Maxwell 2005). sacrebleu's test first
    takes absolute values of the differences, and so gives about half of it.

    Args:
        metric: computes scores from summed statistics.
        before: statistics of the baseline's segments [N, S]; at least one.
        after: statistics of the other system's segments [N, S].
        samples: number of samples, at least 1.
        seed: random seed; equal seeds give equal results.
    """
    both = np.stack([before, after])
    score_before, score_after = metric.score(both.sum(axis=1)).tolist()
    draws_per_step = max(1, _DRAWS_PER_STEP // len(before))
    seeds = np.random.default_rng(seed)
    differences = []
    for begin in range(0, samples, draws_per_step):
        count = min(draws_per_step, samples - begin)
        scores = resampled_scores(metric, both, samples=count, seed=int(seeds.integers(1 << 62)))
        differences.append(scores[:, 1] - scores[:, 0])
        yield
    observed, resampled = score_after - score_before, np.concatenate(differences)
    by_chance = np.abs(resampled - resampled.mean()) >= abs(observed)
    low, high = np.percentile(resampled, _INTERVAL_PERCENT).tolist()
    return SignificanceResult(observed, (int(by_chance.sum()) + 1) / (samples + 1), low, high)


def resampled_scores(
    metric: Metric, stats: Statistics, *, samples: int, seed: int
) -> npt.NDArray[np.float64]:
    """Score systems on resampled segments, the same segments for all systems.

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
    # a float64 matrix product: exact below 2 ** 53, and much faster than gathering rows
    totals = np.rint(times_drawn.astype(np.float64) @ by_segment).astype(np.int64)
    return metric.score(totals.reshape(samples, systems, width))
