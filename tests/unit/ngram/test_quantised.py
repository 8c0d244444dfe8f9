"""Eight-bit codes: nothing but the values changes, and those by little."""

import numpy as np
import pytest

from models.ngram.build import NUM_CODES, encode_values, list_ngrams, quantise_automaton
from models.ngram.model import NGramModel
from models.vocabulary import UNK, Vocabulary
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Silent

VOCABULARY = Vocabulary([f"w{i}" for i in range(400)])


@pytest.fixture(scope="module")
def exact() -> NGramModel:
    """Some 20,000 n-grams with more different values than there are codes."""
    random = np.random.default_rng(5)
    rows = [(random.zipf(1.3, size=12) % 400) + 3 for _ in range(1500)]
    return estimate(EncodedCorpus.from_sentences(rows), VOCABULARY, order=3, progress=Silent()).model


@pytest.fixture(scope="module")
def coded(exact) -> NGramModel:
    return NGramModel(quantise_automaton(exact.automaton), VOCABULARY, normalised=False)


def test_the_same_ngrams_are_listed_with_values_nearby(exact, coded):
    for (ngrams, weights), (same, rounded) in zip(
        list_ngrams(exact.automaton), list_ngrams(coded.automaton), strict=True
    ):
        assert np.array_equal(ngrams.words, same.words)
        assert np.array_equal(ngrams.prefixes, same.prefixes)
        for values, nearby in zip(weights, rounded, strict=True):
            finite = np.isfinite(values)
            assert np.array_equal(finite, np.isfinite(nearby))
            apart = np.abs(values[finite] - nearby[finite])
            assert apart.max(initial=0) < 0.5
            assert apart.sum() < 0.01 * len(apart) + 1e-9


def test_rows_sum_to_almost_one(coded):
    states = coded.initial_state(1).concatenate([coded.empty_state(1)])
    assert np.abs(np.exp(coded.next_log_probs(states)).sum(axis=1) - 1).max() < 0.03


def test_unknown_words_are_charged_what_they_were(exact, coded):
    unknown = [model.next_log_probs(model.empty_state(1))[0, UNK] for model in (exact, coded)]
    assert unknown[0] == unknown[1]


def test_every_answer_agrees_with_the_others(coded):
    """Scores, distributions and ranks of one model, whatever its precision."""
    state = coded.advance(coded.initial_state(2), np.array([4, 5]))
    row = coded.next_log_probs(state)
    top = coded.top_k(state, 20)
    assert np.array_equal(np.take_along_axis(row, top.ids, 1), top.log_probs)
    scores = coded.score(state, top.ids[:, :1], np.ones(2, np.int64))
    assert np.array_equal(scores, top.log_probs[:, :1])


def test_few_values_are_kept_as_they_are():
    values = np.random.default_rng(1).choice(np.float32([-np.inf, -3.25, -0.1, 0, 0.5]), size=1000)
    table, codes = encode_values(values)
    assert len(table) == NUM_CODES
    assert np.array_equal(table[codes], values)


def test_nothing_and_certainty_are_kept_among_many_values():
    values = -np.random.default_rng(1).exponential(size=100_000).astype(np.float32)
    values[:2] = -np.inf, 0
    table, codes = encode_values(values)
    assert table[codes[:2]].tolist() == [-np.inf, 0]
    nearest = np.abs(values[2:1002, None] - table).min(axis=1)
    assert np.abs(table[codes[2:1002]] - values[2:1002]) == pytest.approx(nearest, abs=1e-6)


def test_a_quantised_file_takes_fewer_bytes(exact, coded, tmp_path):
    exact.automaton.save(tmp_path / "exact")
    coded.automaton.save(tmp_path / "coded")
    assert (tmp_path / "coded").stat().st_size < 0.7 * (tmp_path / "exact").stat().st_size
    loaded = NGramModel(type(coded.automaton).load(tmp_path / "coded"), VOCABULARY)
    state = loaded.initial_state(1)
    assert np.array_equal(loaded.next_log_probs(state), coded.next_log_probs(state))
