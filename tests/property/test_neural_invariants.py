"""What must hold of a neural model whatever its shape and whatever it reads."""

from functools import cache

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.language_model import pad_sequences, prefill_sequences, score_sequences
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.vocabulary import BOS, Vocabulary

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
    for parameter in network.parameters():
        torch.nn.init.uniform_(parameter, -0.6, 0.6)
    return NeuralModel(network, VOCABULARY)


class StepByStep:
    """A model with its capabilities to work on whole sequences taken away."""

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
    log_probs = model.next_log_probs(model.prefill(model.initial_state(1), tokens, lengths))
    assert abs(np.exp(log_probs, dtype=np.float64).sum() - 1) < TOLERANCE
    assert log_probs[0, BOS] == -np.inf


@relaxed
@given(models, batches)
def test_whole_score_equals_step_by_step(model, batch):
    state = model.initial_state(len(batch[1]))
    stepwise = score_sequences(StepByStep(model), state, *batch)
    np.testing.assert_allclose(model.score(state, *batch), stepwise, atol=TOLERANCE)


@relaxed
@given(models, batches)
def test_prefill_equals_step_by_step(model, batch):
    state = model.initial_state(len(batch[1]))
    stepwise = prefill_sequences(StepByStep(model), state, *batch)
    for got, want in zip(model.prefill(state, *batch).hidden, stepwise.hidden, strict=True):
        np.testing.assert_allclose(got, want, atol=TOLERANCE)


@relaxed
@given(models, batches)
def test_score_of_a_row_ignores_the_other_rows(model, batch):
    tokens, lengths = batch
    together = model.score(model.initial_state(len(lengths)), tokens, lengths)
    for row, length in enumerate(lengths):
        alone = model.score(model.initial_state(1), tokens[row : row + 1, :length], lengths[row : row + 1])
        np.testing.assert_allclose(together[row, :length], alone[0], atol=TOLERANCE)
        assert not together[row, length:].any()


@relaxed
@given(models, sentence, sentence)
def test_score_of_a_whole_is_the_sum_of_its_parts(model, first, second):
    start = model.initial_state(1)
    tokens, lengths = pad_sequences([first])
    middle = model.prefill(start, tokens, lengths)
    parts = model.score(start, tokens, lengths).sum() + model.score(middle, *pad_sequences([second])).sum()
    assert abs(model.score(start, *pad_sequences([first + second])).sum() - parts) < TOLERANCE * (
        1 + len(first) + len(second)
    )


@relaxed
@given(models, batches, st.data())
def test_selected_and_joined_rows_predict_as_before(model, batch, data):
    state = model.prefill(model.initial_state(len(batch[1])), *batch)
    rows = np.array(data.draw(st.lists(st.integers(0, len(state) - 1), min_size=1, max_size=8)))
    before = model.next_log_probs(state)
    joined = state.select(rows).concatenate([state])
    assert len(joined) == len(rows) + len(state)
    np.testing.assert_allclose(
        model.next_log_probs(joined), np.concatenate([before[rows], before]), atol=TOLERANCE
    )
