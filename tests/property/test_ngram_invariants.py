"""What must hold of any n-gram model, whatever the text, order and batch."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.language_model import pad_sequences
from models.ngram.model import NGramModel, NGramState
from models.vocabulary import BOS, Vocabulary
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Silent

VOCABULARY = Vocabulary(["a", "b", "c", "d"])
sequences = st.lists(st.integers(3, 6) | st.just(0), max_size=10)


@st.composite
def models(draw) -> NGramModel:
    texts = draw(st.lists(sequences, min_size=1, max_size=12))
    order = draw(st.integers(1, 5))
    return estimate(EncodedCorpus.from_sentences(texts), VOCABULARY, order=order, progress=Silent()).model


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
    """To the last bit, in every state: a client may compare the two."""
    state = every_state(model)
    rows = model.next_log_probs(state)
    for word in range(len(VOCABULARY)):
        column = np.full((len(state), 1), word)
        assert np.array_equal(model.score(state, column, np.ones(len(state), np.int64))[:, 0], rows[:, word])


@given(models(), sequences)
@settings(max_examples=50, deadline=None)
def test_whole_sequence_equals_step_by_step(model, sequence):
    state = model.initial_state(1)
    whole = model.score(state, np.array([sequence], dtype=np.int64), np.array([len(sequence)]))[0]
    steps = []
    for word in sequence:
        steps.append(model.next_log_probs(state)[0, word])
        state = model.advance(state, np.array([word]))
    assert whole.tolist() == steps


@given(models(), st.lists(sequences, min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_a_batch_scores_as_its_rows_alone(model, batch):
    tokens, lengths = pad_sequences(batch)
    together = model.score(model.initial_state(len(batch)), tokens, lengths)
    start = model.initial_state(1)
    alone = [model.score(start, tokens[[i]], lengths[[i]])[0] for i in range(len(batch))]
    assert np.array_equal(together, alone)


@given(models(), sequences, sequences)
@settings(max_examples=50, deadline=None)
def test_a_state_carries_all_of_the_past(model, first, second):
    joined = np.array([first + second], dtype=np.int64)
    whole = model.score(model.initial_state(1), joined, np.array([joined.shape[1]]))[0]
    state = model.initial_state(1)
    for word in first:
        state = model.advance(state, np.array([word]))
    rest = model.score(state, np.array([second], dtype=np.int64), np.array([len(second)]))[0]
    assert whole[len(first) :].tolist() == rest.tolist()


@given(models(), st.lists(st.integers(0, 5), max_size=8))
@settings(max_examples=50, deadline=None)
def test_select_and_concatenate_keep_rows_apart(model, rows):
    """A row's distribution does not depend on how it came into the batch."""
    state = model.advance(model.initial_state(6), np.array([0, 2, 3, 4, 5, 6]))
    picked = state.select(np.array(rows, dtype=np.int64))
    joined = picked.concatenate([state])
    expected = model.next_log_probs(state)[[*rows, *range(6)]]
    assert np.array_equal(model.next_log_probs(joined), expected)
