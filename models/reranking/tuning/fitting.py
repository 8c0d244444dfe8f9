"""Weights that hold on other lists too: the mean of what resamples find best, if that beats the first pass.

A search on error counts follows the lists it is given into valleys that others do not have.
What many resamples of the lists agree on is kept, what they do not is averaged away
(bagging, Breiman 1996); a feature on whose sign they hardly agree gets no weight at all. And a more
complicated answer must be better than a simpler one on the lists it was found with, by more than chance would
often have it: else the simplest stands, which is the first pass. Without this the folds of a useless model contradict
each other: each takes what is by chance best outside it, and so worst inside.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from models.reranking.log_linear import MAX_WEIGHT
from models.reranking.tuning.comparing import compare_choices, is_improvement
from models.reranking.tuning.problem import Floats, Ints, TuningProblem
from models.reranking.tuning.scaling import standardise_features
from models.reranking.tuning.search import powell_search, start_points
from models.reranking.tuning.settings import TuningSettings
from models.reranking.tuning.steps import Steps

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


class ProblemVariant(NamedTuple):
    """A problem under one choice of what no weight can express.

    Attributes:
        length_exponent: of the language models.
        problem: with features as that makes them.
    """

    length_exponent: float
    problem: TuningProblem


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


FIRST_PASS_WEIGHTS = FittedWeights(None, 0.0, 0)


def fit_feature_weights(
    shapes: tuple[ProblemVariant, ...],
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
    for place, (exponent, whole) in enumerate(shapes):
        problem = whole.of(lists)
        weights = yield from _mean_weights(problem, settings, searched)
        if weights is None:
            continue
        candidate = FittedWeights(weights, exponent, place)
        before = best.chosen(shapes[best.shape].problem.of(lists))
        after = candidate.chosen(problem)
        test = yield from compare_choices(
            problem, before, after, samples=settings.bootstrap_samples, seed=settings.seed
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
    scaled, scaling = standardise_features(problem)
    telling = np.flatnonzero(scaling.deviations > 0)
    if not telling.size:
        return None
    scaled = scaled.with_features([problem.names[place] for place in telling])
    found = yield from _resampled_weights(scaled, settings, searched)
    mean, deviation = found.mean(axis=0), found.std(axis=0)
    mean[np.abs(mean) < _MIN_AGREEMENT * deviation] = 0.0
    if not mean.any():
        return None
    weights = np.zeros(len(problem.names))
    weights[telling] = mean
    raw = scaling.raw(weights)
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
