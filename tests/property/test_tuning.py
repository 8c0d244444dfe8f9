"""The search for weights, over all problems."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.reranking.candidates import run_steps
from models.reranking.tuning.mert import line_loss
from models.reranking.tuning.problem import argmax_by_list, standardise_features
from tests.tuning_problems import problem


@st.composite
def problems(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    count = sum(sizes)
    whole = st.integers(-6, 6)  # few values, so that candidates are often equal
    errors = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    features = draw(st.lists(st.tuples(whole, whole), min_size=count, max_size=count))
    return problem(errors, features, sizes)


@given(problems())
def test_the_loss_along_a_line_is_what_choosing_at_each_place_gives(one):
    values, slopes = np.ascontiguousarray(one.features.T)
    curve = run_steps(line_loss(one, values, slopes))
    grid = np.linspace(-20, 20, 401) + 0.013  # between the places where small integers cross
    brute = [one.score(argmax_by_list(values + place * slopes, one.offsets)) for place in grid]
    np.testing.assert_allclose(curve.at(np.arctan(grid)), brute)


@given(problems(), st.floats(0.01, 0.5))
def test_the_best_place_is_as_good_as_any_on_a_grid(one, window):
    values, slopes = np.ascontiguousarray(one.features.T)
    curve = run_steps(line_loss(one, values, slopes))
    angle, loss = curve.best(window)
    grid = np.linspace(-np.pi / 2, np.pi / 2, 301)
    assert loss <= curve.smoothed(grid, window).min() + 1e-9
    assert abs(curve.smoothed(np.array([angle]), window)[0] - loss) < 1e-6


@given(problems())
def test_the_oracle_is_no_worse_than_any_choice(one):
    best = one.score(one.oracle())
    ends = zip(one.offsets[:-1], one.offsets[1:], strict=True)
    errors = sum(one.statistics[begin:end, 0].min() for begin, end in ends)
    assert best == one.losses(np.array([errors, one.statistics[one.first_pass(), 1].sum()]))


@settings(max_examples=50)
@given(problems(), st.tuples(st.floats(0.1, 9), st.floats(-9, -0.1)))
def test_comparable_features_choose_as_the_features_did(one, weights):
    scaled, scaling = standardise_features(one)
    comparable = np.array(weights) * scaling.deviations
    totals = scaled.features @ comparable
    raw = one.features @ scaling.raw(comparable)
    lengths = np.diff(one.offsets)
    spread = raw - np.repeat(np.add.reduceat(raw, one.offsets[:-1]) / lengths, lengths)
    np.testing.assert_allclose(totals, spread, atol=1e-9)
