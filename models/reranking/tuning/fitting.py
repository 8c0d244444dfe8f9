"""Fitting of weights that generalise: bagging over resamples, folds, and the posterior scale.

A search on error counts overfits the lists that it is given. So the weights are the mean of those
that many resamples of the lists find best (bagging, Breiman 1996); a feature on whose sign the
resamples hardly agree gets no weight. A more complicated answer must beat a simpler one on the
lists that it was found with, by more than chance would often have it; otherwise the simplest
stands, the first pass. Without this the folds of a useless model contradict each other: each takes
what is best outside it by chance, and so worst inside.

The posterior scale is the factor that makes totals log-posteriors, up to a constant.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from models.errors import InvalidInputError
from models.reranking.candidates import CandidateList, Steps
from models.reranking.features import RANK
from models.reranking.metrics.significance import MAX_SAMPLES, SignificanceResult, paired_bootstrap
from models.reranking.ranking import MAX_LENGTH_EXPONENT, MAX_POSTERIOR_SCALE, MAX_WEIGHT
from models.reranking.tuning.mert import LOSS_TOLERANCE, powell_search, start_points
from models.reranking.tuning.problem import Floats, Ints, TuningProblem, centre_by_list, standardise_features


def is_improvement(problem: TuningProblem, test: SignificanceResult) -> bool:
    """Return whether the difference is for the better."""
    return (test.difference > 0) == problem.metric.higher_is_better and test.difference != 0


MAX_FOLDS = 20
MAX_RESTARTS = 1000
MAX_RESAMPLES = 1000
MAX_EXPONENTS = 5
MAX_SEED = 2**63 - 1
MIN_SAMPLES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """Options of the search for weights and of its evaluation.

    Attributes:
        folds: parts of the lists, each of which is held out once.
        seed: of folds, random starts and resamples: equal seeds give equal results.
        restarts: random starts of a search, beside those from each feature alone.
        resamples: of the lists, of whose best weights the mean is taken.
        length_exponents: of the language models, to choose from; the first is the simplest.
        max_p_value: how probable by chance a gain on lists held out may be at most, either way, to be believed; 1 takes
            what is better at all. The default believes in a gain that is none once in ten times; stricter
            ones forgo more of small gains than they spare.
        bootstrap_samples: that this probability is told from.
        window: radians to either side over which the loss along a line is averaged.

    Raises:
        InvalidInputError: one is outside its limits.
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
        _check_range("folds", self.folds, 2, MAX_FOLDS)
        _check_range("seed", self.seed, 0, MAX_SEED)
        _check_range("restarts", self.restarts, 0, MAX_RESTARTS)
        _check_range("resamples", self.resamples, 1, MAX_RESAMPLES)
        _check_range("max_p_value", self.max_p_value, 0, 1)
        _check_range("bootstrap_samples", self.bootstrap_samples, MIN_SAMPLES, MAX_SAMPLES)
        _check_range("length_exponents", len(self.length_exponents), 1, MAX_EXPONENTS, " values")
        for index, exponent in enumerate(self.length_exponents):
            _check_range(f"length_exponents[{index}]", exponent, 0, MAX_LENGTH_EXPONENT)

    @property
    def num_resamples(self) -> int:
        """Resamples of all folds, and of all lists, under each exponent."""
        return (self.folds + 1) * len(self.length_exponents) * self.resamples


def _check_range(parameter: str, value: float, least: float, most: float, what: str = "") -> None:
    if not least <= value <= most:
        raise InvalidInputError(
            f"{parameter} is {value}{what}; it must be from {least} to {most}", parameter=parameter
        )


_MAX_EXPLORED_LISTS = 500
"""Where valleys lie is looked up on so many lists at most."""

_MAX_RESAMPLE_LISTS = 1000
"""Of so many lists a resample consists at most: more made the mean no better, and every step dearer."""

_NUM_MINIMA = 3
"""Of those found, so many of the lowest are searched with every resample."""

_IN_SAMPLE_P_FACTOR = 1.5
"""On the lists that weights were found with, `max_p_value` may be so many times what it is on lists held out: there are
fewer of them, and what passes here is judged again there."""

_MIN_AGREEMENT = 0.5
"""A feature whose mean weight is less than this share of its deviation over the resamples gets none."""


class FittedWeights(NamedTuple):
    """Weights for features as they are.

    Attributes:
        weights: [D]; None for the first pass.
        length_exponent: of the language models.
        shape: its place among the shapes.
    """

    weights: Floats | None
    length_exponent: float
    shape: int

    def chosen(self, problem: TuningProblem) -> Ints:
        """The candidates that these weights choose [N]; of a problem of this shape."""
        return problem.first_pass() if self.weights is None else problem.chosen(self.weights)

    def by_feature(self, names: Sequence[str]) -> dict[str, float]:
        """The weights that are not zero, by feature; of the first pass, those that keep its order."""
        if self.weights is None:
            return {RANK: 1.0}
        return {name: weight for name, weight in zip(names, self.weights.tolist(), strict=True) if weight}


FIRST_PASS_WEIGHTS = FittedWeights(None, 0.0, 0)


def fit_feature_weights(
    shapes: tuple[TuningProblem, ...],
    lists: Ints,
    settings: TuningSettings,
    *,
    searched: Callable[[], None] = lambda: None,
) -> Steps[FittedWeights]:
    """Find weights on some lists of a problem.

    Args:
        shapes: of one problem, the simplest first.
        lists: numbers of those to look at; no other has an influence.
        settings: how to look.
        searched: called whenever a resample has been searched.
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
) -> Steps[Floats | None]:
    """The mean of the resamples' best weights [D], that of the feature that decides most being 1 or −1.

    They are smaller where features are so different in size that a weight would be larger than one may be.
    None if no feature tells candidates apart, or none is agreed on.
    """
    scaled, deviations = standardise_features(problem)
    telling = np.flatnonzero(deviations > 0)
    if not telling.size:
        return None
    scaled = replace(
        scaled,
        names=tuple(problem.names[index] for index in telling),
        features=np.ascontiguousarray(scaled.features[:, telling]),
    )
    found = yield from _resampled_weights(scaled, settings, searched)
    mean, deviation = found.mean(axis=0), found.std(axis=0)
    mean[np.abs(mean) < _MIN_AGREEMENT * deviation] = 0.0
    if not mean.any():
        return None
    weights = np.zeros(len(problem.names))
    weights[telling] = mean
    raw = np.divide(weights, deviations, out=np.zeros_like(weights), where=deviations > 0)
    unit = max(np.abs(raw[np.argmax(np.abs(weights))]), np.abs(raw).max() / MAX_WEIGHT)
    scaled_raw: Floats = np.clip(raw / unit, -MAX_WEIGHT, MAX_WEIGHT)  # but for rounding, nothing is cut
    return scaled_raw


def _resampled_weights(
    problem: TuningProblem, settings: TuningSettings, searched: Callable[[], None]
) -> Steps[Floats]:
    """The best weights of each resample [R, D]."""
    random = np.random.default_rng(settings.seed)
    explored = problem.of(np.sort(random.permutation(problem.num_lists)[:_MAX_EXPLORED_LISTS]))
    begin = start_points(len(problem.names), restarts=settings.restarts, seed=settings.seed)
    valleys = (yield from powell_search(explored, begin, window=settings.window))[:_NUM_MINIMA]
    found = []
    for _ in range(settings.resamples):
        size = min(problem.num_lists, _MAX_RESAMPLE_LISTS)
        resample = problem.of(random.integers(problem.num_lists, size=size))
        yield
        best = yield from powell_search(resample, [one.weights for one in valleys], window=settings.window)
        found.append(best[0].weights)
        searched()
    return np.array(found)


def assign_folds(lists: Sequence[CandidateList], *, folds: int, seed: int) -> Ints:
    """The fold of each list [N], from 0; about as many lists in each.

    Lists of the same references are in one fold: else what is held out would have been seen.

    Args:
        lists: each with references.
        folds: how many; at least 2.
        seed: another one gives other folds.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, one in enumerate(lists):
        groups.setdefault(one.references, []).append(number)
    members = list(groups.values())
    numbers = np.zeros(len(lists), dtype=np.int64)
    sizes = [0] * folds
    for group in np.random.default_rng(seed).permutation(len(members)).tolist():
        fold = sizes.index(min(sizes))
        numbers[members[group]] = fold
        sizes[fold] += len(members[group])
    return numbers


_MAX_DECADES = 3.0
"""Decades to either side of totals of deviation 1 within their lists."""

_GRID_POINTS = 61
_REFINEMENTS = 40
_MIN_MASS = 1e-300
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class PosteriorResult:
    """Fit of the posteriors to the best candidates.

    Attributes:
        cross_entropy: mean −ln of the posterior of a list's best candidates, in nats.
        cross_entropy_uniform: the same if all candidates of a list were equally probable.
    """

    cross_entropy: float
    cross_entropy_uniform: float


def fit_posterior_scale(problem: TuningProblem, totals: Floats) -> Steps[tuple[float, PosteriorResult]]:
    """The factor under which the best candidates of the lists have the greatest posterior mass, in the geometric mean.

    Args:
        problem: whose lists; one whose candidates are all as good says nothing and is left out.
        totals: of the candidates [C].

    Returns:
        The factor, and the posteriors under it; 1 where no list says anything.
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
    begins, deviation = offsets[:-1], float(np.sqrt(np.mean(centre_by_list(totals, offsets) ** 2)))
    totals = totals - np.repeat(np.maximum.reduceat(totals, begins), lengths)

    def cross_entropy(factor: float) -> float:
        mass = np.exp(totals * factor)
        best = np.add.reduceat(mass * is_best, begins)
        return float(-np.log(np.maximum(best / np.add.reduceat(mass, begins), _MIN_MASS)).mean())

    uniform = cross_entropy(0.0)
    if deviation <= LOSS_TOLERANCE:
        return 1.0, PosteriorResult(uniform, uniform)
    # no request may ask for a larger scale
    widest = min(_MAX_DECADES, math.log10(MAX_POSTERIOR_SCALE * deviation))
    decades = np.linspace(-_MAX_DECADES, widest, _GRID_POINTS)
    losses = []
    for decade in decades:
        losses.append(cross_entropy(10**decade / deviation))
        yield
    least = int(np.argmin(losses))
    low, high = float(decades[max(least - 1, 0)]), float(decades[min(least + 1, _GRID_POINTS - 1)])
    for _ in range(_REFINEMENTS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if cross_entropy(10**left / deviation) <= cross_entropy(10**right / deviation):
            high = right
        else:
            low = left
        yield
    scale = 10 ** ((low + high) / 2) / deviation
    return scale, PosteriorResult(cross_entropy(scale), uniform)
