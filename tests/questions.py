"""Questions to a model that came out of a file, whose answers must be answers, whatever the file said."""

import numpy as np

from models.arrays import to_numpy
from models.language_model import pad_sequences, score_sequences
from models.ngram.build import list_ngrams
from models.vocabulary import EOS


def ask_model(model, *, normalised):
    """Scores, states and distributions, which must be numbers and agree.

    Args:
        model: of any family.
        normalised: whether rows must sum to 1.
    """
    size = len(model.vocabulary)
    random = np.random.default_rng(1)
    rows = [random.integers(0, size, length).tolist() for length in (1, 4, 9)] + [[size - 1, 0, EOS]]
    tokens, lengths = pad_sequences(rows)
    start = model.initial_state(len(rows))
    scores = score_sequences(model, start, tokens, lengths)
    _check_log_probs(scores)
    state = start
    for column in range(2):
        log_probs = to_numpy(model.next_log_probs(state))
        _check_log_probs(log_probs)
        if normalised:
            sums = np.exp(log_probs.astype(np.float64)).sum(axis=1)
            assert np.abs(sums - 1).max() < 1e-3, f"rows sum to {sums}"
        inside = column < lengths
        told = log_probs[np.arange(len(rows)), tokens[:, column]]
        np.testing.assert_allclose(scores[inside, column], told[inside], rtol=1e-3, atol=1e-3)
        state = model.advance(state, np.where(inside, tokens[:, column], EOS))


def ask_ngram(model):
    """What only n-gram models are asked, as well."""
    ask_model(model, normalised=False)  # a file may list what it likes
    size, rows = len(model.vocabulary), 6
    tokens = np.random.default_rng(2).integers(0, size, (rows, 5))
    lengths = np.full(rows, 5)
    states = model.prefill(model.empty_state(rows), tokens, lengths)
    detailed = model.score_detailed(states, tokens, lengths)
    _check_log_probs(detailed.log_probs)
    assert (detailed.orders >= 1).all()
    assert (detailed.orders <= model.order).all()
    assert (model.context_lengths_per_token(states, tokens, lengths) < model.order).all()
    log_probs = model.next_log_probs(states)
    for k in (1, size):
        top = model.top_k(states, k)
        np.testing.assert_array_equal(top.log_probs, -np.sort(-log_probs, axis=1)[:, :k])
        np.testing.assert_array_equal(np.take_along_axis(log_probs, top.ids, axis=1), top.log_probs)
    drawn = model.sample(states, np.random.default_rng(3))
    assert ((drawn >= 0) & (drawn < size)).all()
    possible = np.isfinite(log_probs).any(axis=1)
    assert np.isfinite(log_probs[np.arange(rows), drawn][possible]).all()
    assert sum(len(ngrams.words) for ngrams, _ in list_ngrams(model.automaton)) == model.automaton.num_arcs


def _check_log_probs(log_probs):
    assert not np.isnan(log_probs).any(), "a probability is not a number"
    assert (log_probs < np.inf).all(), "a probability is infinite"
