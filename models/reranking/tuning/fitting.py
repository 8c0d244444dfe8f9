"""Fitting of weights that generalise: bagging over resamples, folds, posterior scale.

A search on error counts overfits its lists. Weights are therefore the mean of the best weights
of many resamples of the lists (bagging, Breiman 1996); a feature gets no weight if they
disagree on its sign. A more complex result must beat a simpler one on its lists by more than
chance; otherwise the simplest result, the first pass, remains. Without this rule, each fold of
a useless model selects what is best on the other lists by chance, and therefore worst on its
own.

The posterior scale is the factor that makes totals log-posteriors, up to a constant.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.arrays import Float64s, Int64s
from models.calls import Steps
from models.errors import InputError, check_range
from models.language_model import weighted
from models.reranking.candidates import CandidateList
from models.reranking.features import RANK
from models.reranking.metrics.metric import MAX_SAMPLES, SignificanceResult, paired_bootstrap
from models.reranking.ranking import MAX_LENGTH_EXPONENT, MAX_POSTERIOR_SCALE, MAX_WEIGHT
from models.reranking.tuning.mert import (
    LOSS_TOLERANCE,
    TuningProblem,
    powell_search,
    spread_by_list,
    standardise_features,
    start_points,
)

MAX_FOLDS = 20
MAX_RESTARTS = 1000
MAX_RESAMPLES = 1000
MAX_EXPONENTS = 5
MAX_SEED = 2**63 - 1
MIN_SAMPLES = 100

_MAX_EXPLORED_LISTS = 500
"""Maximum lists of the first search, which locates the minima."""

_MAX_RESAMPLE_LISTS = 1000
"""Maximum lists per resample; more made the mean no better and every step slower."""

_NUM_MINIMA = 3
"""Number of lowest minima that each resample starts from."""

_IN_SAMPLE_P_FACTOR = 1.5
"""Factor of `max_p_value` on the lists of the fit: these are fewer, and the result is tested
again on held-out lists."""

_MIN_AGREEMENT = 0.5
"""Minimum mean weight relative to its deviation over the resamples; others become 0."""

_MAX_DECADES = 3.0
"""Decades searched to either side, relative to totals with deviation 1 within their lists."""

_GRID_POINTS = 61
_REFINEMENTS = 40
_MIN_MASS = 1e-300
_GOLDEN = (math.sqrt(5) - 1) / 2


def is_improvement(problem: TuningProblem, test: SignificanceResult) -> bool:
    """True if the difference is an improvement."""
    return (test.difference > 0) == problem.metric.higher_is_better and test.difference != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """Settings of the search for weights and of its evaluation.

    Attributes:
        folds: number of parts of the lists, each held out once.
        seed: random seed of folds, starts and resamples.
        restarts: random starts of a search, in addition to one start per feature.
        resamples: number of resamples whose best weights are averaged.
        length_exponents: candidate exponents of the language models, the simplest first.
        max_p_value: maximum two-sided p-value of a gain on held-out lists; 1 accepts any gain. The default accepts
            what is chance once in ten times; stricter values lose more small gains than they save.
        bootstrap_samples: number of samples that estimate the p-value.
        window: radians to either side over which the loss along a line is averaged.

    Raises:
        InputError: a value is out of range.
    """

    folds: int = 2
    seed: int = 0
    restarts: int = 8
    resamples: int = 12
    length_exponents: tuple[float, ...] = (0.0, 1.0)
    max_p_value: float = 0.2
    bootstrap_samples: int = 1000
    window: float = 0.05

    def __post_init__(self) -> None:
        check_range("folds", self.folds, 2, MAX_FOLDS)
        check_range("seed", self.seed, 0, MAX_SEED)
        check_range("restarts", self.restarts, 0, MAX_RESTARTS)
        check_range("resamples", self.resamples, 1, MAX_RESAMPLES)
        check_range("max_p_value", self.max_p_value, 0, 1)
        check_range("bootstrap_samples", self.bootstrap_samples, MIN_SAMPLES, MAX_SAMPLES)
        count = len(self.length_exponents)
        if not 1 <= count <= MAX_EXPONENTS:
            raise InputError.of(
                "length_exponents", f"is {count} values; it must be from 1 to {MAX_EXPONENTS}"
            )
        for index, exponent in enumerate(self.length_exponents):
            check_range(f"length_exponents[{index}]", exponent, 0, MAX_LENGTH_EXPONENT)

    @property
    def num_resamples(self) -> int:
        """Number of resamples of folds and all lists, over all exponents."""
        return (self.folds + 1) * len(self.length_exponents) * self.resamples


class FittedWeights(NamedTuple):
    """Weights for raw features.

    Attributes:
        weights: [D]; None for the first pass.
        length_exponent: exponent of the language models.
        shape: index of the shape with this exponent.
    """

    weights: Float64s | None
    length_exponent: float
    shape: int

    def chosen(self, problem: TuningProblem) -> Int64s:
        """Choose candidates of a problem of this shape with these weights [N]."""
        return problem.first_pass() if self.weights is None else problem.chosen(self.weights)

    def by_feature(self, names: Sequence[str]) -> dict[str, float]:
        """Return nonzero weights by feature; for the first pass, one that keeps its order."""
        if self.weights is None:
            return {RANK: 1.0}
        return {name: weight for name, weight in zip(names, self.weights.tolist(), strict=True) if weight}


FIRST_PASS_WEIGHTS = FittedWeights(None, 0.0, 0)


def fit_feature_weights(
    shapes: tuple[TuningProblem, ...],
    lists: Int64s,
    settings: TuningSettings,
    *,
    searched: Callable[[], None] = lambda: None,
) -> Steps[FittedWeights]:
    """Find weights on some lists of a problem.

    Args:
        shapes: shapes of one problem, the simplest first.
        lists: indices of the lists to use; others have no influence.
        settings: settings of the search.
        searched: callback after each resample.
    """
    best = FIRST_PASS_WEIGHTS
    for index, shape in enumerate(shapes):
        problem = shape.of(lists)
        weights = yield from _mean_weights(problem, settings, searched)
        if weights is None:
            continue
        candidate = FittedWeights(weights, shape.length_exponent, index)
        before = best.chosen(shapes[best.shape].of(lists))
        test = yield from paired_bootstrap(
            problem.metric,
            problem.statistics[before],
            problem.statistics[candidate.chosen(problem)],
            samples=settings.bootstrap_samples,
            seed=settings.seed,
        )
        if is_improvement(problem, test) and test.p_value <= _IN_SAMPLE_P_FACTOR * settings.max_p_value:
            best = candidate
        yield
    return best


def _mean_weights(
    problem: TuningProblem, settings: TuningSettings, searched: Callable[[], None]
) -> Steps[Float64s | None]:
    """Compute the mean of the resamples' best weights [D], scaled to ±1 for the most influential feature.

    Weights are scaled down further if one would exceed `MAX_WEIGHT`. None if no feature distinguishes
    candidates, or the resamples agree on none.
    """
    scaled, deviations = standardise_features(problem)
    telling = np.flatnonzero(deviations > 0)
    if not telling.size:
        return None
    scaled, random = scaled.of_features(telling), np.random.default_rng(settings.seed)
    explored = scaled.of(np.sort(random.permutation(scaled.num_lists)[:_MAX_EXPLORED_LISTS]))
    begin = start_points(len(scaled.names), restarts=settings.restarts, seed=settings.seed)
    valleys = (yield from powell_search(explored, begin, window=settings.window))[:_NUM_MINIMA]
    found = []  # the best weights of each resample [R, D]
    for _ in range(settings.resamples):
        size = min(scaled.num_lists, _MAX_RESAMPLE_LISTS)
        resample = scaled.of(random.integers(scaled.num_lists, size=size))
        yield
        best = yield from powell_search(resample, [one.weights for one in valleys], window=settings.window)
        found.append(best[0].weights)
        searched()
    mean, deviation = np.mean(found, axis=0), np.std(found, axis=0)
    mean[np.abs(mean) < _MIN_AGREEMENT * deviation] = 0.0
    if not mean.any():
        return None
    raw = np.zeros(len(problem.names))
    raw[telling] = mean / deviations[telling]
    unit = max(np.abs(raw[telling[np.argmax(np.abs(mean))]]), np.abs(raw).max() / MAX_WEIGHT)
    # clips rounding errors only
    scaled_raw: Float64s = np.clip(raw / unit, -MAX_WEIGHT, MAX_WEIGHT)
    return scaled_raw


def assign_folds(lists: Sequence[CandidateList], *, folds: int, seed: int) -> Int64s:
    """Assign lists with references to folds of about equal size; return each one's, from 0 [N].

    Lists with equal references share a fold; else the fit would have used held-out references.

    Raises:
        InputError: fewer different references than folds.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, one in enumerate(lists):
        groups.setdefault(one.references, []).append(number)
    members = list(groups.values())
    if len(members) < folds:
        distinct = "one distinct reference" if len(members) == 1 else f"{len(members)} distinct references"
        raise InputError.of(
            "folds",
            f"is {folds}, but {len(lists)} lists have {distinct}; lists with equal references share a fold: give "
            f"lists with at least {folds} different references",
        )
    numbers = np.zeros(len(lists), np.int64)
    sizes = [0] * folds
    for group in np.random.default_rng(seed).permutation(len(members)).tolist():
        fold = sizes.index(min(sizes))
        numbers[members[group]] = fold
        sizes[fold] += len(members[group])
    return numbers


@dataclass(frozen=True, slots=True)
class PosteriorResult:
    """Fit of the posteriors to the best candidates.

    Attributes:
        cross_entropy: mean −ln of the posterior of a list's best candidates, in nats.
        cross_entropy_uniform: cross-entropy if all candidates of a list were equally probable.
    """

    cross_entropy: float
    cross_entropy_uniform: float


def fit_posterior_scale(problem: TuningProblem, totals: Float64s) -> Steps[tuple[float, PosteriorResult]]:
    """Find the factor that maximises the geometric mean of the posterior mass of the lists' best candidates.

    Args:
        problem: the lists; those of equally good candidates are ignored.
        totals: totals of the candidates [C].

    Returns:
        The factor, or 1 if all lists are ignored, and the fit of the posteriors.
    """
    costs = problem.costs(problem.statistics[problem.oracle()].sum(axis=0))
    begins, lengths = problem.offsets[:-1], np.diff(problem.offsets)
    is_best = costs <= np.repeat(np.minimum.reduceat(costs, begins), lengths) + LOSS_TOLERANCE
    telling = np.add.reduceat(is_best, begins, dtype=np.int64) < lengths
    if not telling.any():
        return 1.0, PosteriorResult(0.0, 0.0)
    rows, lengths = np.repeat(telling, lengths), lengths[telling]
    totals, is_best = totals[rows], is_best[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    begins, spread = offsets[:-1], spread_by_list(totals, offsets)
    greatest = np.repeat(np.maximum.reduceat(totals, begins), lengths)
    nowhere = np.isneginf(greatest)
    totals = np.where(nowhere, 0.0, totals) - np.where(nowhere, 0.0, greatest)

    def cross_entropy(factor: float) -> float:
        mass = np.exp(weighted(totals, factor))
        best = np.add.reduceat(mass * is_best, begins)
        return float(-np.log(np.maximum(best / np.add.reduceat(mass, begins), _MIN_MASS)).mean())

    uniform = cross_entropy(0.0)
    if spread <= LOSS_TOLERANCE:
        return 1.0, PosteriorResult(uniform, uniform)
    # the maximum scale of a request
    widest = min(_MAX_DECADES, math.log10(MAX_POSTERIOR_SCALE * spread))
    decades = np.linspace(-_MAX_DECADES, widest, _GRID_POINTS)
    losses = []
    for decade in decades:
        losses.append(cross_entropy(10**decade / spread))
        yield
    least = int(np.argmin(losses))
    low, high = float(decades[max(least - 1, 0)]), float(decades[min(least + 1, _GRID_POINTS - 1)])
    for _ in range(_REFINEMENTS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if cross_entropy(10**left / spread) <= cross_entropy(10**right / spread):
            high = right
        else:
            low = left
        yield
    scale = 10 ** ((low + high) / 2) / spread
    return scale, PosteriorResult(cross_entropy(scale), uniform)
