"""Invariants of n-gram models: distributions, top-k, samples, matched orders, ARPA round trips."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.language_model import BOS, Vocabulary, pad_sequences, score_sequences
from models.ngram.arpa_reader import read_arpa
from models.ngram.arpa_writer import write_arpa
from models.ngram.automaton import Automaton
from models.ngram.build import MAX_UNRANKED_ARCS, NGrams, NGramWeights, build_automaton, list_ngrams
from models.ngram.model import NGramModel, NGramState
from tests.reference.backoff import listed, parse_arpa, random_arpa, random_model, to_orders
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

VOCABULARY = Vocabulary(["a", "b", "c", "d"])
sequences = st.lists(st.integers(3, 6) | st.just(0), max_size=10)


@st.composite
def models(draw) -> NGramModel:
    texts = draw(st.lists(sequences, min_size=1, max_size=12))
    order = draw(st.integers(1, 5))
    return estimate(EncodedCorpus.from_sentences(texts), VOCABULARY, order=order, progress=Progress()).model


def every_state(model):
    return NGramState(np.arange(model.automaton.num_states, dtype=np.int32))


@given(models())
@settings(max_examples=100, deadline=None)
def test_every_row_sums_to_one(model):
    total = np.exp(model.next_log_probs(every_state(model)), dtype=np.float64).sum(axis=1)
    assert np.abs(total - 1).max() < 1e-5


@given(models())
@settings(max_examples=50, deadline=None)
def test_a_start_mark_is_never_predicted(model):
    assert (model.next_log_probs(every_state(model))[:, BOS] == -np.inf).all()


@given(models())
@settings(max_examples=50, deadline=None)
def test_one_token_scores_as_the_distribution_says(model):
    """Bit-exact in every state, because clients may compare the two."""
    state = every_state(model)
    rows = model.next_log_probs(state)
    for word in range(len(VOCABULARY)):
        column = np.full((len(state), 1), word)
        assert np.array_equal(
            score_sequences(model, state, column, np.ones(len(state), np.int64))[:, 0], rows[:, word]
        )


@given(models(), sequences)
@settings(max_examples=50, deadline=None)
def test_whole_sequence_equals_step_by_step(model, sequence):
    state = model.initial_state(1)
    whole = score_sequences(model, state, np.array([sequence], dtype=np.int64), np.array([len(sequence)]))[0]
    steps = []
    for word in sequence:
        steps.append(model.next_log_probs(state)[0, word])
        state = model.advance(state, np.array([word]))
    assert whole.tolist() == steps


@given(models(), st.lists(sequences, min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_a_batch_scores_as_its_rows_alone(model, batch):
    tokens, lengths = pad_sequences(batch)
    together = score_sequences(model, model.initial_state(len(batch)), tokens, lengths)
    start = model.initial_state(1)
    alone = [score_sequences(model, start, tokens[[i]], lengths[[i]])[0] for i in range(len(batch))]
    assert np.array_equal(together, alone)


@given(models(), sequences, sequences)
@settings(max_examples=50, deadline=None)
def test_a_state_carries_all_of_the_past(model, first, second):
    joined = np.array([first + second], dtype=np.int64)
    whole = score_sequences(model, model.initial_state(1), joined, np.array([joined.shape[1]]))[0]
    state = model.initial_state(1)
    for word in first:
        state = model.advance(state, np.array([word]))
    rest = score_sequences(model, state, np.array([second], dtype=np.int64), np.array([len(second)]))[0]
    assert whole[len(first) :].tolist() == rest.tolist()


@given(models(), st.lists(st.integers(0, 5), max_size=8))
@settings(max_examples=50, deadline=None)
def test_select_and_concatenate_keep_rows_apart(model, rows):
    """A row's distribution does not depend on the operations that put it into the batch."""
    state = model.advance(model.initial_state(6), np.array([0, 2, 3, 4, 5, 6]))
    picked = state.select(np.array(rows, dtype=np.int64))
    joined = picked.concatenate([state])
    expected = model.next_log_probs(state)[[*rows, *range(6)]]
    assert np.array_equal(model.next_log_probs(joined), expected)


SMALL = Vocabulary(["a", "b", "c", "d"])
LARGE = Vocabulary([f"w{i}" for i in range(300)])


@st.composite
def small_models(draw) -> NGramModel:
    texts = draw(st.lists(sequences, min_size=1, max_size=12))
    order = draw(st.integers(1, 5))
    return estimate(EncodedCorpus.from_sentences(texts), SMALL, order=order, progress=Progress()).model


@pytest.fixture(scope="module")
def large() -> NGramModel:
    """Model in which some contexts have more arcs than are ranked on demand."""
    random = np.random.default_rng(2)
    rows = [(random.zipf(1.2, size=15) % 300) + 3 for _ in range(3000)]
    model = estimate(EncodedCorpus.from_sentences(rows), LARGE, order=3, progress=Progress()).model
    assert len(model.automaton.ranked_states) > 3
    assert (np.diff(model.automaton.first_arcs)[1:] < MAX_UNRANKED_ARCS).any()
    return model


def assert_top(model, state, k):
    rows, top = model.next_log_probs(state), model.top_k(state, k)
    assert np.array_equal(-np.sort(-rows, axis=1)[:, :k], top.log_probs)
    assert np.array_equal(np.take_along_axis(rows, top.ids, 1), top.log_probs)
    assert all(len(set(ids)) == k for ids in top.ids.tolist())


@given(small_models(), st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_the_top_is_that_of_the_whole_distribution(model, k):
    assert_top(model, every_state(model), k)


@pytest.mark.parametrize("k", [1, 10, 100, 303])
def test_the_top_of_contexts_with_many_words_is_that_of_the_whole_distribution(large, k):
    states = np.append(large.automaton.ranked_states, np.arange(0, large.automaton.num_states, 7))
    assert_top(large, NGramState(states.astype(np.int32)), k)


def spelt_ngrams(automaton) -> set[tuple[int, ...]]:
    spelt, listed = [()], set()
    for ngrams, _ in list_ngrams(automaton):
        spelt = [(*spelt[p], w) for p, w in zip(ngrams.prefixes.tolist(), ngrams.words.tolist(), strict=True)]
        listed |= set(spelt)
    return listed


@given(small_models(), sequences)
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


@given(small_models())
@settings(max_examples=60, deadline=None)
def test_listing_undoes_building(model):
    orders = list_ngrams(model.automaton)
    for before, after in zip(model.automaton, build_automaton(orders), strict=True):
        assert np.array_equal(before, after)


def without_suffixes(orders: list[tuple[NGrams, NGramWeights]]) -> Automaton:
    return build_automaton([(n._replace(suffixes=np.full(len(n.words), -1, np.int32)), w) for n, w in orders])


@given(small_models())
@settings(max_examples=60, deadline=None)
def test_suffixes_that_are_not_given_are_found(model):
    found = without_suffixes(list_ngrams(model.automaton))
    assert np.array_equal(found.suffixes, model.automaton.suffixes)


ENDINGS = ["", ".gz", ".xz", ".zst"]
TOKENS = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)


def identical(arrays, others):
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(arrays, others, strict=True))


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    order=st.integers(1, 5),
    tokens=st.lists(TOKENS, unique=True, min_size=1, max_size=6),
    ending=st.sampled_from(ENDINGS),
)
def test_an_exported_model_comes_back_bit_for_bit(tmp_path_factory, seed, order, tokens, ending):
    """For any words, with and without listed suffixes."""
    path = tmp_path_factory.mktemp("arpa") / f"model{ending}"
    vocabulary = Vocabulary(tokens)
    model = random_model(seed, vocab_size=len(vocabulary), order=order)
    automaton = build_automaton(to_orders(model))
    write_arpa(path, vocabulary, list_ngrams(automaton))
    again = read_arpa(path)
    assert again.vocabulary.tokens == vocabulary.tokens
    assert identical(build_automaton(again.orders), automaton)


@pytest.mark.parametrize("seed", range(20))
def test_an_imported_file_is_exported_with_the_same_ngrams_and_floats(tmp_path, seed):
    rng = np.random.default_rng(seed)
    text, _ = random_arpa(rng, order=1 + seed % 5, unknown=seed % 3 > 0, orphans=seed % 2)
    (tmp_path / "theirs").write_text(text, encoding="utf-8")
    model = read_arpa(tmp_path / "theirs")
    written = write_arpa(tmp_path / "ours", model.vocabulary, list_ngrams(build_automaton(model.orders)))
    ours, theirs = (
        {words: tuple(map(np.float32, values)) for words, values in parse_arpa(whole).items()}
        for whole in ((tmp_path / "ours").read_text(encoding="utf-8"), text)
    )
    assert ours.pop(("<unk>",))[0] == theirs.pop(("<unk>",), (-100,))[0]
    assert ours == theirs
    assert listed(model.vocabulary, read_arpa(tmp_path / "ours").orders) == listed(
        model.vocabulary, model.orders
    )
    assert written.counts == tuple(len(ngrams.words) for ngrams, _ in model.orders)
