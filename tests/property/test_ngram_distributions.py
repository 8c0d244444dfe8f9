"""The top of a distribution, draws from it and matched orders, against the whole distribution and plain lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.ngram.automaton import Automaton
from models.ngram.build import MAX_UNRANKED_ARCS, NGrams, NGramWeights, build_automaton, list_ngrams
from models.ngram.model import NGramModel, NGramState
from models.vocabulary import Vocabulary
from tests.backoff import random_model, to_orders
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Silent

SMALL = Vocabulary(["a", "b", "c", "d"])
LARGE = Vocabulary([f"w{i}" for i in range(300)])
sequences = st.lists(st.integers(3, 6) | st.just(0), max_size=10)


@st.composite
def models(draw) -> NGramModel:
    texts = draw(st.lists(sequences, min_size=1, max_size=12))
    order = draw(st.integers(1, 5))
    return estimate(EncodedCorpus.from_sentences(texts), SMALL, order=order, progress=Silent()).model


@pytest.fixture(scope="module")
def large() -> NGramModel:
    """Some contexts have more arcs than are ranked on the fly."""
    random = np.random.default_rng(2)
    rows = [(random.zipf(1.2, size=15) % 300) + 3 for _ in range(3000)]
    model = estimate(EncodedCorpus.from_sentences(rows), LARGE, order=3, progress=Silent()).model
    assert len(model.automaton.ranked_states) > 3
    assert (np.diff(model.automaton.first_arcs)[1:] < MAX_UNRANKED_ARCS).any()
    return model


def every_state(model):
    return NGramState(np.arange(model.automaton.num_states, dtype=np.int32))


def assert_top(model, state, k):
    rows, top = model.next_log_probs(state), model.top_k(state, k)
    assert np.array_equal(-np.sort(-rows, axis=1)[:, :k], top.log_probs)
    assert np.array_equal(np.take_along_axis(rows, top.ids, 1), top.log_probs)
    assert all(len(set(ids)) == k for ids in top.ids.tolist())


@given(models(), st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_the_top_is_that_of_the_whole_distribution(model, k):
    assert_top(model, every_state(model), k)


@pytest.mark.parametrize("k", [1, 10, 100, 303])
def test_the_top_of_contexts_with_many_words_is_that_of_the_whole_distribution(large, k):
    states = np.append(large.automaton.ranked_states, np.arange(0, large.automaton.num_states, 7))
    assert_top(large, NGramState(states.astype(np.int32)), k)


def assert_drawn_from(probs, draws):
    """Pearson's chi-square over words expected 5 times or more stays below its 1 - 1e-9 quantile, roughly."""
    expected = len(draws) * probs
    counts = np.bincount(draws, minlength=len(probs))
    often = expected >= 5
    chi_square = ((counts - expected)[often] ** 2 / expected[often]).sum()
    freedom = max(int(often.sum()) - 1, 1)
    assert chi_square < freedom + 8 * np.sqrt(2 * freedom) + 20
    assert abs(int(counts[~often].sum()) - expected[~often].sum()) < 6 * np.sqrt(expected[~often].sum() + 1)


@pytest.mark.parametrize("seed", range(6))
def test_draws_follow_the_distribution(large, seed):
    random = np.random.default_rng(seed)
    ranked = large.automaton.ranked_states
    state = [0, ranked[-1], ranked[1], *random.integers(0, large.automaton.num_states, 3)][seed]
    state = NGramState(np.full(50_000, state, dtype=np.int32))
    probs = np.exp(large.next_log_probs(state.select(np.array([0])))[0].astype(np.float64))
    assert_drawn_from(probs, large.sample(state, random))


@given(models(), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_draws_of_small_models_follow_the_distribution(model, seed):
    """Few words: most of what a suffix proposes is refused, and whole distributions have to be made."""
    random = np.random.default_rng(seed)
    state = int(random.integers(model.automaton.num_states))
    rows = NGramState(np.full(4_000, state, dtype=np.int32))
    probs = np.exp(model.next_log_probs(rows.select(np.array([0])))[0].astype(np.float64))
    assert_drawn_from(probs, model.sample(rows, random))


@pytest.mark.parametrize("seed", [639, 1305, 1419, 1539, 2171])
def test_draws_follow_the_distribution_where_hardly_a_word_of_the_suffix_is_left(seed):
    """Nearly all that the suffixes propose is refused, by one context or the other."""
    random = np.random.default_rng(seed)
    vocab_size = int(random.integers(4, 12))
    orders = to_orders(random_model(seed, vocab_size=vocab_size, order=int(random.integers(1, 6))))
    model = NGramModel(build_automaton(orders), Vocabulary([f"w{i}" for i in range(vocab_size - 3)]))
    rows = NGramState(np.full(20_000, random.integers(model.automaton.num_states), dtype=np.int32))
    probs = np.exp(model.next_log_probs(rows.select(np.array([0])))[0].astype(np.float64))
    assert_drawn_from(probs, model.sample(rows, random))


def test_a_row_of_next_to_nothing_is_drawn_from_all_the_same():
    """Not a float of single precision could hold these probabilities."""
    probs = np.float32([-np.inf, -np.inf, -50, -50.3, -np.inf, -np.inf, -np.inf])
    zeros = np.zeros(7, np.int32)
    automaton = build_automaton(
        [(NGrams(np.arange(7, dtype=np.int32), zeros, zeros), NGramWeights(probs, probs))]
    )
    model = NGramModel(automaton, SMALL, normalised=False)
    drawn = model.sample(model.initial_state(3000), np.random.default_rng(1))
    shares = 10 ** probs[2:4].astype(float)
    assert_drawn_from(np.array([0, 0, *shares / shares.sum(), 0, 0, 0]), drawn)


def test_equal_seeds_draw_equal_words(large):
    rows = NGramState(np.arange(500, dtype=np.int32))
    first, second = (large.sample(rows, np.random.default_rng(9)) for _ in range(2))
    assert np.array_equal(first, second)
    one_by_one = [
        large.sample(rows.select(np.array([i])), random)
        for random in [np.random.default_rng(9)]
        for i in range(500)
    ]
    assert np.array_equal(np.concatenate(one_by_one), first)


def spelt_ngrams(automaton) -> set[tuple[int, ...]]:
    spelt, listed = [()], set()
    for ngrams, _ in list_ngrams(automaton):
        spelt = [(*spelt[p], w) for p, w in zip(ngrams.prefixes.tolist(), ngrams.words.tolist(), strict=True)]
        listed |= set(spelt)
    return listed


@given(models(), sequences)
@settings(max_examples=60, deadline=None)
def test_a_tokens_order_is_that_of_the_longest_listed_ngram(model, sequence):
    listed = spelt_ngrams(model.automaton)
    text = (1, *sequence)
    expected = [
        max(n for n in range(1, min(model.order, end) + 1) if text[end - n : end] in listed)
        for end in range(2, len(text) + 1)
    ]
    tokens = np.array([sequence], dtype=np.int64)
    detail = model.score_detailed(model.initial_state(1), tokens, np.array([len(sequence)]))
    assert detail.orders[0].tolist() == expected


@given(models())
@settings(max_examples=60, deadline=None)
def test_listing_undoes_building(model):
    orders = list_ngrams(model.automaton)
    for before, after in zip(model.automaton, build_automaton(orders), strict=True):
        assert np.array_equal(before, after)


def without_suffixes(orders: list[tuple[NGrams, NGramWeights]]) -> Automaton:
    return build_automaton([(n._replace(suffixes=np.full(len(n.words), -1, np.int32)), w) for n, w in orders])


@given(models())
@settings(max_examples=60, deadline=None)
def test_suffixes_that_are_not_given_are_found(model):
    found = without_suffixes(list_ngrams(model.automaton))
    assert np.array_equal(found.suffixes, model.automaton.suffixes)
