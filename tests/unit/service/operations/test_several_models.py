"""Several models in one request: words at different beginnings, cut searches, punctuation, extreme weights."""

import math

import numpy as np
import pytest

from models.calls import run_to_completion
from models.checking.check import Checked, _combine
from models.checking.checker import Issue, Suggestion
from models.checking.sentences import Word
from models.completion.prefix import split_prefix
from models.language_model import BOS, UNK, Vocabulary
from models.prefix_cache import Evidence, NextTokenEntry
from models.scoring.model_weights import (
    WeightedModel,
    normalised_weights,
    shares,
    weights_after,
    weights_before,
    weights_given_text,
)
from models.text_model import Limits
from models.tokenizers import CharacterTokenizer, WordTokenizer
from service.operations.autocomplete import AutocompleteRequest, autocomplete
from tests.unit.conftest import loaded

LIMITS = Limits(max_texts=10, max_tokens_per_sequence=1000, max_new_tokens=1)
WORDS = ("a", "an", "Ann", "and", "den", "cat,", "and,", '"an', '"and', "be.a", "BE.a")
OF_WORDS = loaded(WordTokenizer(Vocabulary(WORDS)))
OF_CHARS = loaded(CharacterTokenizer(Vocabulary('abdentcEB ,."')), seed=2)


def complete(text, *models, weights=(1.0, 1000.0), **options):
    request = AutocompleteRequest(text=text, limit=100, **options)
    return run_to_completion(autocomplete(list(map(WeightedModel, models, weights)), request, LIMITS))


def test_a_word_after_punctuation_begins_after_a_space():
    reply = complete("a cat,", OF_WORDS, OF_CHARS)
    found = {one.text: one.suffix for one in reply.completions}
    assert found.pop("cat,") == ""  # the word of one model, which includes the comma
    assert {text[:5] for text in found} == {"cat, "}
    assert all("cat," + suffix == text for text, suffix in found.items())


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a a", {"max_steps": 1}),
        ("a a", {"max_steps": 3}),
        ('a "an', {"fuzzy": 1}),
        ("a BE.a", {"casing": "ignore"}),
        ("a cat,", {}),
    ],
)
def test_no_more_than_the_whole_is_told(text, options):
    reply = complete(text, OF_WORDS, OF_CHARS, **options)
    words = [one.probability for one in reply.completions if one.is_complete_word]
    assert math.fsum(words) + reply.unexplored_mass <= 1 + 1e-6


@pytest.mark.parametrize("models", [(OF_CHARS,), (OF_WORDS, OF_CHARS)])
def test_a_word_of_the_dictionary_is_offered_although_the_search_ended_inside_it(models):
    beginnings = [
        one.text for one in complete("a a", *models, max_steps=1).completions if not one.is_complete_word
    ]
    reply = complete("a a", *models, max_steps=1, dictionary=beginnings[:1])
    (one,) = (one for one in reply.completions if one.text == beginnings[0])
    assert (one.is_complete_word, one.source) == (True, "user")


def test_weights_that_round_to_nothing_stay_finite():
    prior = normalised_weights([WeightedModel(OF_WORDS, 5e-324), WeightedModel(OF_CHARS, 1e9)])
    log_probs = np.array([[-5.0, -9999.0, -5.0], [-9999.0, -5.0, -9999.0]])
    for function in (weights_before, weights_given_text):
        weights = run_to_completion(function(prior, log_probs))
        assert weights.sum(axis=1) == pytest.approx(np.ones(len(weights)))


def part_log_probs(one, parts):
    """Ln P(part | parts before it) by the table of a fake model; an unknown word also has a spelling."""
    tokenizer, before, found = one.tokenizer, BOS, []
    for part in parts:
        found.append(0.0)
        for token in tokenizer.encode(part):
            found[-1] += float(one.model.table[before, token])
            found[-1] += one.checker.log_spelling(part.strip()) if token == UNK else 0.0
            before = token
    return found


@pytest.mark.parametrize(
    ("text", "of_words", "of_characters"),
    [
        ("a cat,", ["a ", ""], ["a ", "cat,"]),  # after a comma, characters begin another word
        ("a and a an", ["a ", "and ", "a ", ""], ["a ", "and ", "a ", ""]),
        ("bed an", ["bed ", ""], ["bed ", ""]),  # unknown to the model of words
    ],
)
def test_weights_after_a_text_are_drawn_anew_before_each_word_but_the_last(text, of_words, of_characters):
    models = [WeightedModel(OF_WORDS, 1.0), WeightedModel(OF_CHARS, 3.0)]
    expected = prior = np.array([0.25, 0.75])
    scores = np.exp([part_log_probs(OF_WORDS, of_words), part_log_probs(OF_CHARS, of_characters)])
    for word in scores.T[:-1]:
        expected = 0.95 * expected * word / (expected @ word) + 0.05 * prior
    expected = expected * scores[:, -1] / (expected @ scores[:, -1])
    splits = [split_prefix(one.loaded.tokenizer, text) for one in models]
    found = run_to_completion(weights_after(models, splits, [NextTokenEntry(0)] * 2, text))
    assert found == pytest.approx(expected, rel=1e-4)


def test_evidence_that_is_cached_counts_if_it_ends_where_the_words_do():
    models = [WeightedModel(OF_WORDS), WeightedModel(OF_CHARS)]
    splits = [split_prefix(one.loaded.tokenizer, "a an") for one in models]

    def weights(*evidence):
        entries = [NextTokenEntry(0, evidence=one) for one in evidence]
        return run_to_completion(weights_after(models, splits, entries, "a an"))

    certain = [np.array([0.0, 0.0]), np.array([-500.0, 0.0])]
    assert weights(*(Evidence(2, one) for one in certain)) == pytest.approx([0.975, 0.025])
    assert weights(*(Evidence(1, one) for one in certain)) == pytest.approx(weights(None, None))


def test_shares_of_one_model_given_twice_add_up():
    models = [WeightedModel(OF_WORDS)] * 2
    assert shares([0.25, 0.75], models) == {"fake@1": 1.0}
    assert shares([1.0], models[:1]) is None


def combined(text, words, issues, log_probs=(-5.0, -5.0), weights=(1.0, 1.0), of=None):
    """Combine results of two models for a text that is one word."""
    results = [
        Checked(own, np.array([-score]), found, np.zeros(1, np.int64), np.array([score]), 0)
        for own, found, score in zip(words, issues, log_probs, strict=True)
    ]
    models = list(map(WeightedModel, of or (OF_WORDS, OF_CHARS), weights))
    return run_to_completion(_combine(models, results, text))[0]


def test_an_error_is_one_if_the_words_of_a_model_include_punctuation():
    issues = [
        [Issue(0, 4, known=False, probability=0.9, suggestions=(Suggestion("the.", 0.8, 1.0, 1),))],
        [
            Issue(
                0,
                3,
                known=False,
                probability=0.7,
                suggestions=(Suggestion("the", 0.6, 2.0, 1), Suggestion("then", 0.1, 0.0, 2)),
            )
        ],
    ]
    words = [[Word("teh.", 0, 4, 0, 1, known=True)], [Word("teh", 0, 3, 0, 3, known=False)]]
    (issue,) = combined("teh.", words, issues).issues
    assert (issue.start, issue.end) == (0, 4)
    assert issue.probability == pytest.approx(0.8)
    assert [(one.text, pytest.approx(one.probability)) for one in issue.suggestions] == [
        ("the.", 0.7),
        ("then.", 0.05),
    ]


def test_a_word_that_either_model_knows_is_no_unknown_word_of_an_issue():
    words = [[Word("cat", 0, 3, 0, 1, known=False)], [Word("cat", 0, 3, 0, 1, known=True)]]
    issues = [[Issue(0, 3, known=False, probability=0.9, suggestions=())], []]
    (issue,) = combined("cat", words, issues, of=(OF_WORDS, OF_WORDS)).issues
    assert issue.known
    (issue,) = combined("cat", words, issues).issues
    assert not issue.known  # characters spell any word


def test_a_word_that_a_model_is_certain_of_has_a_finite_surprisal():
    words = [[Word("cat", 0, 3, 0, 1, known=True)]] * 2
    checked = combined("cat", words, [[], []], log_probs=(0.0, -1e4), weights=(1e-3, 1.0))
    assert checked.surprisals == [0]


def test_words_that_are_impossible_for_all_models_tell_nothing():
    log_probs = np.array([[-1.0, -np.inf, -2e4, -np.inf], [-np.inf, -np.inf, -np.inf, -1.0]])
    prior = np.array([0.25, 0.75])
    before = run_to_completion(weights_before(prior, log_probs))
    given = run_to_completion(weights_given_text(prior, log_probs))
    assert before.sum(axis=1) == pytest.approx(np.ones(5))
    assert before[1:].argmax(axis=1).tolist() == [0, 0, 0, 1]
    assert given.sum(axis=1) == pytest.approx(np.ones(4))
    assert before[2] == pytest.approx(0.95 * before[1] + 0.05 * prior)
