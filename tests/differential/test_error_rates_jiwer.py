"""Error counts against jiwer's."""

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.reranking.metrics import make_metric
from tests.nbest_data import RECOGNISED, recognised, translated

texts = st.text("ab é.", max_size=12)


def theirs(name, text, reference):
    count = jiwer.process_words if name == "wer" else jiwer.process_characters
    found = count(reference, text)
    errors = found.substitutions + found.deletions + found.insertions
    return [errors, found.hits + found.substitutions + found.deletions]


def rate(name, text, reference):
    return 100 * (jiwer.wer if name == "wer" else jiwer.cer)(reference, text)


@pytest.mark.parametrize("name", ["wer", "cer"])
@given(texts, texts)
def test_counts_and_rates_are_those_of_jiwer(name, text, reference):
    metric = make_metric(name)
    statistics = metric.statistics([text], [reference])
    assert statistics[0].tolist() == theirs(name, text, reference)
    assert metric.score(statistics)[0] == pytest.approx(rate(name, text, reference))


def check_corpus(name, lists):
    """All hypotheses: those with the same rank are one system's output."""
    metric = make_metric(name)
    totals = sum(metric.statistics(one.texts, [one.reference]) for one in lists)
    references = [one.reference for one in lists]
    for system, ours in enumerate(totals):
        assert ours.tolist() == theirs(name, [one.texts[system] for one in lists], references)


@pytest.mark.data
@pytest.mark.parametrize("name", ["wer", "cer"])
@pytest.mark.parametrize("corpus", RECOGNISED)
def test_counts_of_recognised_speech_are_those_of_jiwer(name, corpus, data_dir):
    check_corpus(name, recognised(data_dir, corpus))


@pytest.mark.data
def test_counts_of_translations_are_those_of_jiwer(data_dir):
    check_corpus("wer", translated(data_dir))


@pytest.mark.data
def test_the_first_hypotheses_and_the_best_have_the_rates_that_the_data_is_known_for(data_dir):
    metric = make_metric("wer")
    lists = [metric.statistics(one.texts, [one.reference]) for one in recognised(data_dir, "common-voice")]
    first = metric.score(sum(rows[0] for rows in lists))
    oracle = metric.score(sum(rows[rows[:, 0].argmin()] for rows in lists))
    assert [round(float(first), 2), round(float(oracle), 1)] == [15.44, 11.3]
