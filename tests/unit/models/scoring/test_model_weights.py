"""Weights of several models: the hidden Markov model by enumeration of all sequences of models."""

import itertools

import numpy as np
import pytest

from models.calls import run_to_completion
from models.scoring import model_weights
from models.scoring.model_weights import sum_by_word, weights_before, weights_given_text, word_starts


def path_probabilities(prior, log_probs):
    """Return all sequences of models, and the joint probability of each with the words."""
    count, words = log_probs.shape
    stay = 1 - model_weights._SWITCH
    paths = list(itertools.product(range(count), repeat=words))
    joint = []
    for path in paths:
        probability = 1.0
        for word, model in enumerate(path):
            drawn = prior[model]
            if word:
                drawn = (1 - stay) * prior[model] + stay * (model == path[word - 1])
            probability *= drawn * np.exp(log_probs[model, word])
        joint.append(probability)
    return np.array(paths), np.array(joint)


@pytest.mark.parametrize("count", [2, 3])
def test_weights_are_those_of_the_hidden_markov_model(count):
    rng = np.random.default_rng(count)
    log_probs = rng.normal(-8, 2, (count, 5))
    prior = rng.dirichlet(np.ones(count))
    before, given = (run_to_completion(f(prior, log_probs)) for f in (weights_before, weights_given_text))
    paths, joint = path_probabilities(prior, log_probs)
    for word in range(5):
        seen, of_seen = path_probabilities(prior, log_probs[:, : word + 1])
        of_seen = of_seen / np.exp(log_probs[seen[:, -1], word])  # without the word itself
        for model in range(count):
            expected = of_seen[seen[:, -1] == model].sum() / of_seen.sum()
            assert before[word, model] == pytest.approx(expected, rel=1e-9)
            expected = joint[paths[:, word] == model].sum() / joint.sum()
            assert given[word, model] == pytest.approx(expected, rel=1e-9)
    assert before.sum(axis=1) == pytest.approx(np.ones(6))


def test_the_model_is_drawn_anew_before_one_word_in_twenty():
    after_a_word = run_to_completion(weights_before(np.array([0.5, 0.5]), np.array([[-1.0], [-500.0]])))[1]
    assert after_a_word == pytest.approx([1 - 0.05 / 2, 0.05 / 2])


def test_impossible_words_leave_finite_weights():
    log_probs = np.array([[-1e4, -1e4, -5.0], [-3.0, -1e4, -1e4]])
    prior = np.array([0.5, 0.5])
    for function in (weights_before, weights_given_text):
        weights = run_to_completion(function(prior, log_probs))
        assert np.isfinite(weights).all()
        assert weights.sum(axis=1) == pytest.approx(np.ones(len(weights)))
    assert weights[:, 0] == pytest.approx([0, 0.5, 1], abs=1e-6)


def test_values_are_summed_by_the_words_that_white_space_separates():
    text = " I can't.  No "
    starts = word_starts(text)
    assert [text[start] for start in starts] == ["I", "c", "N"]
    assert sum_by_word(starts, [0, 1, 3, 6, 11, 14], [1, 2, 4, 8, 16, 32]).tolist() == [3, 12, 48]


@pytest.mark.parametrize("empty", [np.zeros((2, 0)), np.zeros((1, 0))])
def test_without_words_the_weights_are_those_of_the_request(empty):
    prior = np.ones(len(empty)) / len(empty)
    assert run_to_completion(weights_before(prior, empty)).tolist() == [prior.tolist()]
    assert run_to_completion(weights_given_text(prior, empty)).shape == (0, len(empty))


def test_other_requests_run_while_the_weights_of_a_long_text_are_computed():
    log_probs = np.full((2, 5000), -5.0)
    assert sum(1 for _ in weights_given_text(np.ones(2) / 2, log_probs)) >= 8
