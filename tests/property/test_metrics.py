"""Metrics, over all texts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.reranking.metrics import METRIC_NAMES, make_metric
from models.reranking.metrics.error_rate import pairwise_distances

sequences = st.text("abc", max_size=12)
texts = st.lists(st.sampled_from(["a", "b", "c", ".", ",", "it's", "10-3"]), max_size=8).map(" ".join)
names = st.sampled_from(METRIC_NAMES)


def distance(a, b):
    return int(pairwise_distances([a], [b])[0, 0])


@given(sequences, sequences)
def test_an_edit_distance_is_symmetric_and_zero_only_between_equals(a, b):
    assert distance(a, b) == distance(b, a)
    assert (distance(a, b) == 0) == (a == b)


@given(sequences, sequences, sequences)
def test_a_detour_is_never_shorter(a, b, c):
    assert distance(a, c) <= distance(a, b) + distance(b, c)


@given(sequences, sequences)
def test_an_edit_distance_lies_between_the_difference_of_lengths_and_the_longer(a, b):
    assert abs(len(a) - len(b)) <= distance(a, b) <= max(len(a), len(b))


@given(names, texts, st.lists(texts, min_size=1, max_size=3))
def test_what_is_counted_of_a_text_does_not_depend_on_its_company(name, text, references):
    metric = make_metric(name)
    alone = metric.statistics([text], references)[0]
    np.testing.assert_array_equal(metric.statistics(["b c", text, text], references)[1:], [alone, alone])


@given(texts, st.lists(texts, min_size=1, max_size=3), texts, st.sampled_from(["wer", "cer"]))
def test_another_reference_never_adds_errors(text, references, another, name):
    metric = make_metric(name)
    (before,), (after,) = (metric.statistics([text], known) for known in (references, [*references, another]))
    assert after[0] <= before[0]


@given(texts, st.lists(texts, min_size=1, max_size=3), texts)
def test_another_reference_never_lowers_chrf(text, references, another):
    chrf = make_metric("chrf")
    before, after = (chrf.statistics([text], known) for known in (references, [*references, another]))
    assert chrf.score(after) >= chrf.score(before)


@given(texts.filter(bool), st.lists(texts, max_size=2))
def test_a_text_that_is_a_reference_is_right(text, others):
    references = [*others, text]
    assert make_metric("wer").statistics([text], references)[0, 0] == 0
    assert make_metric("cer").statistics([text], references)[0, 0] == 0
    assert float(make_metric("chrf").score(make_metric("chrf").statistics([text], references))[0]) == 100.0
