"""Paired bootstrap resampling."""

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.reranking.metrics import make_metric
from models.reranking.metrics.significance import paired_bootstrap, resampled_scores

WER = make_metric("wer")


def errors(rate, seed, segments=400):
    """Errors of segments of ten words."""
    drawn = np.random.default_rng(seed).binomial(10, rate, segments)
    return np.stack([drawn, np.full(segments, 10)], axis=1)


def test_a_system_does_not_differ_from_itself():
    stats = errors(0.2, seed=1)
    assert paired_bootstrap(WER, stats, stats) == (0.0, 1.0, 0.0, 0.0)


def test_a_clear_difference_is_significant_and_inside_its_interval():
    test = paired_bootstrap(WER, errors(0.3, seed=1), errors(0.2, seed=2))
    assert test.p_value == pytest.approx(1 / 1001)
    assert test.low < test.difference < test.high < 0


def test_a_difference_by_chance_is_rarely_significant():
    p_values = np.array(
        [
            paired_bootstrap(WER, errors(0.2, 2 * i), errors(0.2, 2 * i + 1), samples=200).p_value
            for i in range(200)
        ]
    )
    assert (p_values < 0.1).mean() == pytest.approx(0.1, abs=0.06)


def test_equal_seeds_give_equal_results_and_others_do_not():
    a, b = errors(0.2, seed=1), errors(0.19, seed=2)
    assert paired_bootstrap(WER, a, b, seed=7) == paired_bootstrap(WER, a, b, seed=7)
    assert paired_bootstrap(WER, a, b, seed=7) != paired_bootstrap(WER, a, b, seed=8)


def test_results_do_not_depend_on_how_many_samples_are_drawn_at_once(monkeypatch):
    both = np.stack([errors(0.2, seed=1, segments=7), errors(0.3, seed=2, segments=7)])
    at_once = resampled_scores(WER, both, samples=100, seed=3)
    monkeypatch.setattr("models.reranking.metrics.significance._MAX_DRAWS", 70)
    np.testing.assert_array_equal(resampled_scores(WER, both, samples=100, seed=3), at_once)


def test_systems_must_have_the_same_segments():
    with pytest.raises(InvalidInputError, match=r"\[3, 2\] and \[4, 2\]"):
        paired_bootstrap(WER, errors(0.2, 1, 3), errors(0.2, 1, 4))


@pytest.mark.parametrize("samples", [0, 100_001])
def test_the_number_of_samples_has_limits(samples):
    with pytest.raises(InvalidInputError, match=f"samples is {samples}"):
        paired_bootstrap(WER, errors(0.2, 1), errors(0.2, 2), samples=samples)
