"""Invariants of checking for any text."""

import itertools
from dataclasses import astuple, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.checking.checker import Checker
from models.scoring.model_weights import WeightedModel
from models.text_model import Limits
from service.operations.check import CheckRequest, check
from tests.support.text_models import check as check_directly
from tests.support.text_models import trigram, weigh

KINDS = ("word", "char", "unigram")
LIMITS = Limits(max_texts=100, max_tokens_per_sequence=10_000, max_new_tokens=1)
WORDS = st.sampled_from(
    [
        "the",
        "cat",
        "teh",
        "off",
        "hat",
        "mat",
        "house",
        "hous e",
        "dogg",
        "Gnu",
        "caf\u00e9",
        "\U0001f600",
        ",",
        "3",
    ]
)
SPACES = st.sampled_from([" ", " ", " ", "  ", "\n", "\t", "\u00a0", ""])
NATURAL = st.lists(st.tuples(WORDS, SPACES), max_size=14).map(lambda p: "".join(w + s for w, s in p))
TEXTS = NATURAL | st.text(max_size=40)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(text=TEXTS, threshold=st.sampled_from([0.0, 0.1, 0.9]))
def test_issues_are_words_of_the_text_with_probabilities(kind, text, threshold):
    issues = check_directly(*trigram(kind), text, threshold=threshold)
    assert all(0 <= i.start < i.end <= len(text) for i in issues)
    assert all(a.end <= b.start for a, b in itertools.pairwise(issues))
    assert all(threshold <= i.probability <= 1 for i in issues)
    assert all(0 <= s.probability <= 1 for i in issues for s in i.suggestions)
    assert not any("\n" in text[i.start : i.end] for i in issues)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(text=TEXTS)
def test_words_cover_no_more_than_the_text_is_charged_for(kind, text):
    batches = weigh(*trigram(kind), text)
    words = [word for batch in batches for word in batch.words]
    assert [text[w.start : w.end] for w in words] == [w.text for w in words]
    for batch in batches:
        assert batch.word_log_probs.sum() >= batch.log_probs.sum() - 1e-3


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(text=NATURAL)
def test_a_dictionary_of_all_words_leaves_no_issue(kind, text):
    cutter = Checker(trigram(kind)[1]).splitter
    words = [w.text for s in cutter.sentences(text, lookahead=1) for w in s.words]
    dictionary = {word.lower(): word for word in words}
    issues = check_directly(*trigram(kind), text, threshold=0.0, dictionary=dictionary)
    assert issues == []


@settings(max_examples=30, deadline=None)
@given(text=NATURAL, rates=st.tuples(st.floats(0.001, 0.4), st.floats(1.1, 2.0)))
def test_more_is_wrong_where_more_errors_are_expected(text, rates):
    low, high = rates[0], rates[0] * rates[1]
    found = [
        {
            (i.start, i.end): i.probability
            for i in check_directly(*trigram(), text, threshold=0.0, error_rate=rate)
        }
        for rate in (low, high)
    ]
    for span in found[0].keys() & found[1].keys():
        assert found[0][span] <= found[1][span] + 1e-9


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(text=NATURAL)
def test_the_engine_is_told_what_is_told_without_it(kind, text):
    from models.calls import run_to_completion
    from tests.unit.conftest import loaded

    model, tokenizer = trigram(kind)
    one = replace(loaded(tokenizer), model=model)
    checked, _ = run_to_completion(
        check([WeightedModel(one)], CheckRequest(text=text, threshold=0.1), None, LIMITS)
    )
    told = [
        (i.start, i.end, i.type == "real_word", i.probability, [astuple(s) for s in i.suggestions])
        for i in checked.issues
    ]
    assert told == [
        (i.start, i.end, i.known, i.probability, list(i.suggestions))
        for i in check_directly(model, tokenizer, text, threshold=0.1)
    ]
