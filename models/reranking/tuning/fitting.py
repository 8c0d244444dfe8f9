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
from models.reranking.tuning.comparing import compare, is_gain
from models.reranking.tuning.problem import Floats, Ints, Problem
from models.reranking.tuning.scaling import standardised
from models.reranking.tuning.search import search, starts
from models.reranking.tuning.settings import TuningSettings
from models.reranking.tuning.steps import Steps

_EXPLORED_LISTS = 500
"""Where valleys lie is looked up on so many lists at most."""

_RESAMPLED_LISTS = 1000
"""Of so many lists a resample consists at most: more made the mean no better, and every step dearer."""

_VALLEYS = 3
"""Of those found, so many of the lowest are searched with every resample."""

_IN_SAMPLE = 1.5
"""On the lists that weights were found with, `max_p_value` may be so many times what it is on lists held out: there are
fewer of them, and what passes here is judged again there."""

_LEAST_AGREEMENT = 0.5
"""A feature whose mean weight is less than this share of its deviation over the resamples gets none."""


class Shape(NamedTuple):
    """A problem under one choice of what no weight can express.

    Attributes:
        length_exponent: of the language models.
        problem: with features as that makes them.
    """

    length_exponent: float
    problem: Problem


class Fitted(NamedTuple):
    """Weights for features as they are.

    Attributes:
        weights: [D]; None for the first pass.
        length_exponent: of the language models.
        shape: its place among the shapes.
    """

    weights: Floats | None
    length_exponent: float
    shape: int

    def chosen(self, problem: Problem) -> Ints:
        """The candidates that these weights choose [N]; of a problem of this shape."""
        return problem.first_pass() if self.weights is None else problem.chosen(self.weights)


FIRST_PASS = Fitted(None, 0.0, 0)


def fit(
    shapes: tuple[Shape, ...],
    lists: Ints,
    settings: TuningSettings,
    *,
    searched: Callable[[], None] = lambda: None,
) -> Steps[Fitted]:
    """Find weights on some lists of a problem.

    Args:
        shapes: of one problem, the simplest first.
        lists: numbers of those to look at; no other has an influence.
        settings: how to look.
        searched: called whenever a resample has been searched.
    """
    best = FIRST_PASS
    for place, (exponent, whole) in enumerate(shapes):
        problem = whole.of(lists)
        weights = yield from _mean_weights(problem, settings, searched)
        if weights is None:
            continue
        candidate = Fitted(weights, exponent, place)
        before = best.chosen(shapes[best.shape].problem.of(lists))
        after = candidate.chosen(problem)
        test = yield from compare(
            problem, before, after, samples=settings.bootstrap_samples, seed=settings.seed
        )
        if is_gain(problem, test) and test.p_value <= _IN_SAMPLE * settings.max_p_value:
            best = candidate
        yield
    return best


def _mean_weights(
    problem: Problem, settings: TuningSettings, searched: Callable[[], None]
) -> Steps[Floats | None]:
    """The mean of the resamples' best weights [D], that of the feature that decides most being 1 or −1.

    They are smaller where features are so different in size that a weight would be larger than one may be.
    None if no feature tells candidates apart, or none is agreed on.
    """
    scaled, scaling = standardised(problem)
    telling = np.flatnonzero(scaling.deviations > 0)
    if not telling.size:
        return None
    scaled = scaled.with_features([problem.names[place] for place in telling])
    found = yield from _resampled(scaled, settings, searched)
    mean, deviation = found.mean(axis=0), found.std(axis=0)
    mean[np.abs(mean) < _LEAST_AGREEMENT * deviation] = 0.0
    if not mean.any():
        return None
    weights = np.zeros(len(problem.names))
    weights[telling] = mean
    raw = scaling.raw(weights)
    unit = max(np.abs(raw[np.argmax(np.abs(weights))]), np.abs(raw).max() / MAX_WEIGHT)
    scaled_raw: Floats = np.clip(raw / unit, -MAX_WEIGHT, MAX_WEIGHT)  # but for rounding, nothing is cut
    return scaled_raw


def _resampled(problem: Problem, settings: TuningSettings, searched: Callable[[], None]) -> Steps[Floats]:
    """The best weights of each resample [R, D]."""
    random = np.random.default_rng(settings.seed)
    explored = problem.of(np.sort(random.permutation(problem.num_lists)[:_EXPLORED_LISTS]))
    begin = starts(len(problem.names), restarts=settings.restarts, seed=settings.seed)
    valleys = (yield from search(explored, begin, window=settings.window))[:_VALLEYS]
    found = []
    for _ in range(settings.resamples):
        size = min(problem.num_lists, _RESAMPLED_LISTS)
        resample = problem.of(random.integers(problem.num_lists, size=size))
        yield
        best = yield from search(resample, [one.weights for one in valleys], window=settings.window)
        found.append(best[0].weights)
        searched()
    return np.array(found)
