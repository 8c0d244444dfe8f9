"""Invariants of neural models for any shape and input; bit-exact batch invariance of int8 models."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.kernels.threads import THREADS
from models.language_model import BOS, Vocabulary, pad_sequences, prefill_sequences, score_sequences
from models.neural.config import NetworkConfig
from models.neural.int8.model import Int8Model
from models.neural.model import NeuralModel
from models.neural.network import Network

VOCABULARY = Vocabulary([f"w{i}" for i in range(30)])
TOLERANCE = 1e-5


@cache
def model_of(cell, attention, *, layers, hidden_size, extras):
    torch.manual_seed(7)
    config = NetworkConfig(
        cell=cell,
        layers=layers,
        embedding_size=8,
        hidden_size=hidden_size,
        tied=extras,
        residual=extras,
        layer_norm=extras,
        learned_state=extras,
        attention=attention,
        attention_window=5,
    )
    network = Network(config, len(VOCABULARY))
    for param in network.parameters():
        torch.nn.init.uniform_(param, -0.6, 0.6)
    return NeuralModel(network, VOCABULARY)


class StepByStep:
    """Model reduced to single steps, without methods for complete sequences."""

    def __init__(self, model):
        self.next_log_probs = model.next_log_probs
        self.advance = model.advance


models = st.builds(
    model_of,
    st.sampled_from(["feed-forward", "elman", "lstm", "gru", "mingru"]),
    st.sampled_from(["none", "additive", "multiplicative", "scaled"]),
    layers=st.integers(1, 2),
    hidden_size=st.sampled_from([8, 11]),
    extras=st.booleans(),
)
sentence = st.lists(st.integers(0, len(VOCABULARY) - 1).filter(lambda i: i != BOS), max_size=70)
batches = st.lists(sentence, min_size=1, max_size=6).map(pad_sequences)
relaxed = settings(max_examples=25, deadline=None)


@relaxed
@given(models, sentence)
def test_rows_sum_to_one_without_bos(model, ids):
    tokens, lengths = pad_sequences([ids])
    log_probs = model.next_log_probs(prefill_sequences(model, model.initial_state(1), tokens, lengths))
    assert abs(np.exp(log_probs, dtype=np.float64).sum() - 1) < TOLERANCE
    assert log_probs[0, BOS] == -np.inf


@relaxed
@given(models, batches)
def test_whole_score_equals_step_by_step(model, batch):
    state = model.initial_state(len(batch[1]))
    stepwise = score_sequences(StepByStep(model), state, *batch)
    np.testing.assert_allclose(score_sequences(model, state, *batch), stepwise, atol=TOLERANCE)


@relaxed
@given(models, batches)
def test_prefill_equals_step_by_step(model, batch):
    state = model.initial_state(len(batch[1]))
    stepwise = prefill_sequences(StepByStep(model), state, *batch)
    for got, want in zip(prefill_sequences(model, state, *batch).hidden, stepwise.hidden, strict=True):
        np.testing.assert_allclose(got, want, atol=TOLERANCE)


@relaxed
@given(models, batches)
def test_score_of_a_row_ignores_the_other_rows(model, batch):
    tokens, lengths = batch
    together = score_sequences(model, model.initial_state(len(lengths)), tokens, lengths)
    for row, length in enumerate(lengths):
        alone = score_sequences(
            model, model.initial_state(1), tokens[row : row + 1, :length], lengths[row : row + 1]
        )
        np.testing.assert_allclose(together[row, :length], alone[0], atol=TOLERANCE)
        assert not together[row, length:].any()


@relaxed
@given(models, sentence, sentence)
def test_score_of_a_whole_is_the_sum_of_its_parts(model, first, second):
    start = model.initial_state(1)
    tokens, lengths = pad_sequences([first])
    middle = prefill_sequences(model, start, tokens, lengths)
    parts = (
        score_sequences(model, start, tokens, lengths).sum()
        + score_sequences(model, middle, *pad_sequences([second])).sum()
    )
    assert abs(score_sequences(model, start, *pad_sequences([first + second])).sum() - parts) < TOLERANCE * (
        1 + len(first) + len(second)
    )


@relaxed
@given(models, batches, st.data())
def test_selected_and_joined_rows_predict_as_before(model, batch, data):
    state = prefill_sequences(model, model.initial_state(len(batch[1])), *batch)
    rows = np.array(data.draw(st.lists(st.integers(0, len(state) - 1), min_size=1, max_size=8)))
    before = model.next_log_probs(state)
    joined = state.select(rows).concatenate([state])
    assert len(joined) == len(rows) + len(state)
    np.testing.assert_allclose(
        model.next_log_probs(joined), np.concatenate([before[rows], before]), atol=TOLERANCE
    )


SHAPES = {
    "lstm 13": {"cell": "lstm", "layers": 2, "embedding_size": 17, "hidden_size": 13, "tied": True},
    "lstm 511": {"cell": "lstm", "layers": 1, "embedding_size": 33, "hidden_size": 511, "tied": False},
    "gru 17": {"cell": "gru", "layers": 2, "embedding_size": 17, "hidden_size": 17, "learned_state": True},
    "elman 15": {"cell": "elman", "layers": 2, "embedding_size": 17, "hidden_size": 15, "residual": True},
    "mingru 33": {"cell": "mingru", "layers": 2, "embedding_size": 33, "hidden_size": 33, "layer_norm": True},
    "feed-forward 21": {
        "cell": "feed-forward",
        "layers": 2,
        "embedding_size": 7,
        "hidden_size": 21,
        "window": 3,
        "residual": True,
        "layer_norm": True,
    },
    "attentive elman 15": {"cell": "elman", "embedding_size": 17, "hidden_size": 15}
    | {"attention": "scaled", "attention_window": 5, "attention_size": 7},
    "additive gru 9": {"cell": "gru", "embedding_size": 9, "hidden_size": 9}
    | {"attention": "additive", "attention_window": 3, "attention_size": 5},
    "adaptive lstm 21": {"cell": "lstm", "embedding_size": 21, "hidden_size": 21}
    | {"output": "adaptive", "cutoffs": (500, 3000)},
}
VOCAB_SIZE = 10_001  # odd, like the widths


@cache
def quantised_model_of(shape):
    torch.manual_seed(3)
    network = Network(NetworkConfig(**SHAPES[shape]), VOCAB_SIZE)
    for param in network.parameters():
        torch.nn.init.uniform_(param, -0.6, 0.6)
    return Int8Model(network.weights(), Vocabulary([f"w{i}" for i in range(VOCAB_SIZE - 3)]))


@pytest.fixture(params=SHAPES)
def quantised_model(request):
    return quantised_model_of(request.param)


def sentences(count, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(2, VOCAB_SIZE, n).tolist() for n in random.integers(0, 75, count)]


def scores_of(model, texts):
    """Scores of each text from one batch."""
    scores = score_sequences(model, model.initial_state(len(texts)), *pad_sequences(texts))
    return [row[: len(text)].tolist() for row, text in zip(scores, texts, strict=True)]


@cache
def scored_alone(model):
    """Texts, and the scores of each text in its own batch."""
    texts = sentences(65)
    return texts, [scores_of(model, [text])[0] for text in texts]


@pytest.mark.parametrize("size", [2, 17, 64, 65])
def test_scores_are_the_same_alone_and_in_any_batch_in_any_order(quantised_model, size):
    texts, alone = (rows[:size] for rows in scored_alone(quantised_model))
    assert scores_of(quantised_model, texts) == alone
    order = np.random.default_rng(1).permutation(size)
    shuffled = scores_of(quantised_model, [texts[i] for i in order])
    assert shuffled == [alone[i] for i in order]


@pytest.mark.parametrize("start", ["initial_state", "empty_state"])
@pytest.mark.parametrize("size", [1, 2, 17, 64])
def test_whole_sequences_score_as_step_by_step(quantised_model, size, start):
    batch = pad_sequences([text[:12] for text in sentences(size, seed=2)])
    state = getattr(quantised_model, start)(size)
    stepwise = score_sequences(StepByStep(quantised_model), state, *batch)
    assert (score_sequences(quantised_model, state, *batch) == stepwise).all()


@pytest.mark.parametrize("size", [1, 3, 64])
def test_reading_at_once_leaves_the_state_of_reading_step_by_step(quantised_model, size):
    batch = pad_sequences([text[:12] for text in sentences(size, seed=3)])
    whole = prefill_sequences(quantised_model, quantised_model.initial_state(size), *batch)
    stepwise = prefill_sequences(StepByStep(quantised_model), quantised_model.initial_state(size), *batch)
    for got, want in zip(whole.hidden, stepwise.hidden, strict=True):
        assert (got == want).all()


def test_distributions_are_the_same_alone_and_in_a_batch(quantised_model):
    state = prefill_sequences(
        quantised_model,
        quantised_model.initial_state(17),
        *pad_sequences([text[:9] for text in sentences(17, seed=4)]),
    )
    together = quantised_model.next_log_probs(state)
    for row in range(17):
        assert (quantised_model.next_log_probs(state.select(np.array([row])))[0] == together[row]).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_scores_are_the_same_in_any_number_of_threads(quantised_model, threads, monkeypatch):
    texts = sentences(30, seed=7)
    monkeypatch.setattr(THREADS, "limit", 1)
    expected = scores_of(quantised_model, texts)
    monkeypatch.setattr(THREADS, "limit", threads)
    assert scores_of(quantised_model, texts) == expected


def test_scores_are_the_same_from_two_threads_at_once(quantised_model):
    texts = sentences(24, seed=5)
    expected = scores_of(quantised_model, texts)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: scores_of(quantised_model, texts), range(4))) == [expected] * 4


def test_a_text_scores_the_same_in_pieces(quantised_model):
    text = sentences(1, seed=6)[0] + [5, 6, 7] * 40  # longer than one read
    whole = scores_of(quantised_model, [text])[0]
    state = quantised_model.initial_state(1)
    pieces = []
    for start in range(0, len(text), 7):
        piece = pad_sequences([text[start : start + 7]])
        pieces += score_sequences(quantised_model, state, *piece)[0].tolist()
        state = prefill_sequences(quantised_model, state, *piece)
    assert pieces == whole


def test_rows_sum_to_one_without_the_start(quantised_model):
    log_probs = quantised_model.next_log_probs(
        prefill_sequences(
            quantised_model, quantised_model.initial_state(3), *pad_sequences([[4, 5], [], [9]])
        )
    )
    assert np.exp(log_probs, dtype=np.float64).sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert (log_probs[:, BOS] == -np.inf).all()
    assert np.isfinite(np.delete(log_probs, BOS, axis=1)).all()
