"""Every smoothing and the automaton against definitions written with dictionaries, on random texts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.language_model import BOS, EOS, Vocabulary, score_sequences
from tests.reference import smoothing as slow
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate, make_smoothing
from training.progress import Progress

CLOSED = Vocabulary(["a", "b", "c"])
VOCABULARY = Vocabulary(["a", "b", "c", "never"])
UNSEEN = VOCABULARY.id_of("never")

DEFINITIONS = {
    "mle": slow.SlowMaximumLikelihood,
    "laplace": slow.SlowAdditive,
    "add-k": slow.SlowAdditive,
    "good-turing": slow.SlowGoodTuring,
    "jelinek-mercer": slow.SlowJelinekMercer,
    "witten-bell": slow.SlowWittenBell,
    "absolute": slow.SlowAbsolute,
    "kneser-ney": slow.SlowKneserNey,
    "modified-kneser-ney": slow.SlowModifiedKneserNey,
}
FITTED = ["absolute", "kneser-ney", "modified-kneser-ney"]

# ids 0 (<unk>, as a counted word), 3, 4, 5; few words, so n-grams repeat
sentences = st.lists(st.lists(st.sampled_from([0, 3, 4, 5]), max_size=8), min_size=1, max_size=12)
orders = st.integers(1, 4)
vocabularies = st.sampled_from([CLOSED, VOCABULARY])
thresholds = st.lists(st.integers(0, 3), max_size=3).map(lambda higher: [0, *sorted(higher)])


def both(name, texts, *, order, prune=(), vocabulary=VOCABULARY, held_out=None, **settings_):
    """Return the estimated model and the reference, which gets the fitted parameters."""
    result = estimate(
        EncodedCorpus.from_sentences(texts),
        vocabulary,
        order=order,
        smoothing=make_smoothing(name, **settings_),
        prune=prune[:order],
        held_out=EncodedCorpus.from_sentences(held_out or texts),
        progress=Progress(),
    )
    definition = DEFINITIONS[name](texts, len(vocabulary), order, prune[:order])
    definition.k = settings_.get("k", 1.0 if name == "laplace" else 0.1)
    if name == "jelinek-mercer":
        definition.lambdas = [row if isinstance(row, list) else [row] for row in result.facts["lambdas"]]
    if settings_.get("discounts") == "held-out":
        definition.fitted = result.facts["discounts"]
    return result.model, definition


def assert_same(model, definition, contexts):
    """Check each p(w|h), and that rows sum to 1."""
    states = []
    for context in contexts:
        state = model.empty_state(1)
        for word in context:
            state = model.advance(state, np.array([word]))
        states.append(state)
    rows = np.exp(model.next_log_probs(states[0].concatenate(states[1:])), dtype=np.float64)
    assert rows.sum(axis=1) == pytest.approx(np.ones(len(rows)), abs=1e-6)
    expected = [[definition.p(word, context) for word in definition.words] for context in contexts]
    assert rows[:, definition.words] == pytest.approx(np.array(expected), rel=3e-6, abs=1e-12)


def all_contexts(order, vocabulary=VOCABULARY):
    """Contexts of up to order − 1 words, seen or not, also after `<s>` and `</s>`."""
    words = [0, *range(3, len(vocabulary))]
    anywhere = [c for size in range(order) for c in itertools.product(words, repeat=size)]
    return [*anywhere, *((BOS, *c) for c in anywhere if len(c) < order - 1), (EOS,), (3, EOS)]


@pytest.mark.parametrize("name", DEFINITIONS)
@given(texts=sentences, order=orders, prune=thresholds, vocabulary=vocabularies)
@settings(max_examples=40, deadline=None)
def test_every_conditional_probability_is_that_of_the_definition(name, texts, order, prune, vocabulary):
    model, definition = both(name, texts, order=order, prune=prune, vocabulary=vocabulary)
    assert_same(model, definition, all_contexts(order, vocabulary))


@pytest.mark.parametrize("name", FITTED)
@given(texts=sentences, other=sentences, order=orders, prune=thresholds)
@settings(max_examples=15, deadline=None)
def test_fitted_discounts_are_used_as_the_definition_says(name, texts, other, order, prune):
    model, definition = both(name, texts, order=order, prune=prune, held_out=other, discounts="held-out")
    assert_same(model, definition, all_contexts(order))


@given(texts=sentences, other=sentences, order=orders, prune=thresholds, buckets=st.integers(2, 5))
@settings(max_examples=15, deadline=None)
def test_bucketed_weights_are_used_as_the_definition_says(texts, other, order, prune, buckets):
    model, definition = both(
        "jelinek-mercer", texts, order=order, prune=prune, held_out=other, buckets=buckets
    )
    assert_same(model, definition, all_contexts(order))


@given(texts=sentences, order=orders, k=st.floats(1e-3, 10))
@settings(max_examples=15, deadline=None)
def test_add_k_equals_the_reference_for_any_k(texts, order, k):
    assert_same(*both("add-k", texts, order=order, k=k), all_contexts(order))


def zipfian_texts(seed, *, sentences=400, types=40):
    """Texts with Zipfian frequencies, long enough to estimate discounts from counts of counts."""
    rng = np.random.default_rng(seed)
    probs = 1 / np.arange(1, types + 1)
    words = lambda: rng.choice(types, size=rng.integers(0, 12), p=probs / probs.sum()) + 3  # noqa: E731
    return [words().tolist() for _ in range(sentences)]


@pytest.mark.parametrize("name", ["good-turing", *FITTED])
def test_the_larger_texts_below_do_allow_estimates(name):
    corpus = EncodedCorpus.from_sentences(zipfian_texts(0))
    vocabulary = Vocabulary([f"w{i}" for i in range(42)])
    result = estimate(corpus, vocabulary, order=4, smoothing=make_smoothing(name), progress=Progress())
    assert set(result.facts["fallback_orders"]) <= {1}


@pytest.mark.parametrize("prune", [(), (0, 0, 1, 1), (0, 1, 1, 2)])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_larger_texts_whose_counts_allow_estimates(name, prune):
    texts = zipfian_texts(len(prune))
    vocabulary = Vocabulary([f"w{i}" for i in range(42)])
    model, definition = both(
        name, texts, order=4, prune=prune, vocabulary=vocabulary, held_out=zipfian_texts(9, sentences=20)
    )
    seen = sorted({c for c in definition.followers if len(c) < 4})
    rng = np.random.default_rng(1)
    picked = [seen[i] for i in rng.choice(len(seen), 60, replace=False)]
    invented = [tuple(rng.integers(3, 45, size=rng.integers(1, 4)).tolist()) for _ in range(60)]
    assert_same(model, definition, [(), (BOS,), *picked, *invented])


@given(sentences, orders, st.lists(st.sampled_from([0, 3, 4, 5, UNSEEN]), max_size=6))
@settings(max_examples=50, deadline=None)
def test_a_text_is_scored_by_definition(texts, order, text):
    model, definition = both("modified-kneser-ney", texts, order=order)
    scores = score_sequences(
        model, model.initial_state(1), np.array([[*text, EOS]]), np.array([len(text) + 1])
    )
    history = (BOS, *text, EOS)
    expected = [definition.p(history[i], history[:i]) for i in range(1, len(history))]
    assert np.exp(scores[0], dtype=np.float64) == pytest.approx(expected, rel=2e-6, abs=1e-12)
