"""Re-ranking, over all lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.reranking.ranking import rank

totals = st.lists(st.floats(-9999, 9999), min_size=1, max_size=30).map(np.array)


@given(totals)
def test_a_ranking_is_a_permutation_in_falling_order(values):
    ranking = rank(values)
    assert sorted(ranking.order) == list(range(len(values)))
    assert (np.diff(values[ranking.order]) <= 0).all()


@given(totals)
def test_posteriors_are_a_distribution_in_falling_order(values):
    posteriors = rank(values).posteriors
    assert abs(posteriors.sum() - 1) < 1e-9
    assert (np.diff(posteriors) <= 0).all()


@given(totals, st.floats(-100, 100))
def test_posteriors_do_not_depend_on_what_all_share(values, shift):
    np.testing.assert_allclose(rank(values + shift).posteriors, rank(values).posteriors, atol=1e-6)
