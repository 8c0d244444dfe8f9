"""Additive metric counts and corpus scores; paired bootstrap resampling."""

import numpy as np
import pytest

from models.calls import run_to_completion
from models.errors import InputError
from models.reranking.metrics import METRIC_NAMES, make_metric
from models.reranking.metrics.metric import SignificanceResult, format_score, paired_bootstrap


def counts(name, text, *references, **options):
    return make_metric(name, **options).statistics([text], references)[0].tolist()


def test_word_errors_are_substitutions_deletions_and_insertions():
    assert counts("wer", "a x c d e", "a b c d") == [2, 4]
    assert counts("wer", "a  d ", "a b c d") == [2, 4]


def test_character_errors_count_the_spaces_between_words():
    assert counts("cer", " ab c", "abc") == [1, 3]


def test_the_reference_with_the_fewest_errors_counts():
    assert counts("wer", "a b", "a x y z", "b a b") == [1, 3]
    assert counts("wer", "a", "a b c", "") == [1, 0]


def test_of_references_with_as_few_errors_the_longest_counts():
    assert counts("wer", "a b", "a", "a b c", "b") == [1, 3]


def test_an_empty_reference_counts_as_one_word():
    metric = make_metric("wer")
    assert metric.score(metric.statistics(["", "a b"], [""])).tolist() == [0.0, 200.0]


@pytest.mark.parametrize(("normaliser", "errors"), [("none", 2), ("lower", 1), ("lower-unpunctuated", 0)])
def test_a_normaliser_is_applied_to_texts_and_references(normaliser, errors):
    assert counts("wer", "Don't stop", "don't Stop\u2026", normaliser=normaliser) == [errors, 2]


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_scores_are_made_of_any_number_of_sums_at_once(name):
    metric = make_metric(name)
    totals = metric.statistics(["the cat sat on a mat", "the cat", ""], ["the cat sat on the mat"])
    expected = [[float(metric.score(row))] for row in totals]
    np.testing.assert_array_equal(metric.score(totals[:, None]), expected)


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_no_texts_have_no_statistics(name):
    metric = make_metric(name)
    empty = metric.statistics([], ["a b"])
    assert empty.shape == (0, metric.statistics(["a"], ["a b"]).shape[1])
    assert np.isfinite(metric.score(empty.sum(axis=0)))


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_without_a_reference_nothing_is_counted(name):
    with pytest.raises(InputError, match="references has 0 texts"):
        make_metric(name).statistics(["a"], [])


def test_an_unknown_metric_is_refused_by_name():
    with pytest.raises(InputError, match="'ter'; it must be one of wer, cer, bleu, chrf"):
        make_metric("ter")


def test_a_normaliser_that_the_metric_does_not_have_is_refused():
    with pytest.raises(InputError, match="'lower'; for bleu it must be one of none"):
        make_metric("bleu", normaliser="lower")


def test_error_rates_say_what_they_count():
    assert make_metric("wer").signature == "nrefs:1|units:words|normaliser:none"
    assert make_metric("cer", num_references=None, normaliser="lower").signature == (
        "nrefs:var|units:characters|normaliser:lower"
    )


def test_better_is_said_of_each_metric():
    assert [make_metric(name).higher_is_better for name in METRIC_NAMES] == [False, False, True, True]


WER = make_metric("wer")


def errors(rate, seed, segments=400):
    """Errors of segments of ten words."""
    drawn = np.random.default_rng(seed).binomial(10, rate, segments)
    return np.stack([drawn, np.full(segments, 10)], axis=1)


def compared(before, after, samples=1000, seed=12345):
    return run_to_completion(paired_bootstrap(WER, before, after, samples=samples, seed=seed))


def test_a_system_does_not_differ_from_itself():
    stats = errors(0.2, seed=1)
    assert compared(stats, stats) == SignificanceResult(0.0, 1.0, 0.0, 0.0)


def test_a_clear_difference_is_significant_and_inside_its_interval():
    test = compared(errors(0.3, seed=1), errors(0.2, seed=2))
    assert test.p_value == pytest.approx(1 / 1001)
    assert test.low < test.difference < test.high < 0


def test_a_difference_by_chance_is_rarely_significant():
    p_values = np.array(
        [compared(errors(0.2, 2 * i), errors(0.2, 2 * i + 1), samples=200).p_value for i in range(200)]
    )
    assert (p_values < 0.1).mean() == pytest.approx(0.1, abs=0.06)


def test_chance_counts_differences_in_both_directions():
    """The difference is 1.005 standard errors: further out are 31.5 % of a normal distribution, 15.7 % on one side.

    95 % are within 1.96 standard errors.
    """
    before, after = np.full((100, 2), 10), np.full((100, 2), 10)
    after[:55, 0] -= 1
    after[55:, 0] += 1
    test = compared(before, after, samples=4000)
    assert test.p_value == pytest.approx(0.315, abs=0.04)
    assert (test.low, test.high) == pytest.approx((-1 - 1.96 * 0.995, -1 + 1.96 * 0.995), abs=0.15)


def test_each_sample_of_many_segments_is_another():
    """A step draws one sample of so many segments."""
    before, after = errors(0.3, seed=1, segments=1 << 14), errors(0.3, seed=2, segments=1 << 14)
    test = compared(before, after, samples=10)
    assert test.low < test.high


def test_equal_seeds_give_equal_results_and_others_do_not():
    a, b = errors(0.2, seed=1), errors(0.19, seed=2)
    assert compared(a, b, seed=7) == compared(a, b, seed=7)
    assert compared(a, b, seed=7) != compared(a, b, seed=8)


def test_error_rates_are_formatted_as_per_cent_and_other_scores_as_numbers():
    assert [format_score(name, 7.0) for name in METRIC_NAMES] == ["7.00 %", "7.00 %", "7.00", "7.00"]
