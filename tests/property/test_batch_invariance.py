"""What a quantised model tells of a text depends on that text alone, to the last bit."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch

from models.language_model import pad_sequences, prefill_sequences, score_sequences
from models.neural.config import NetworkConfig
from models.neural.model import Int8Model
from models.neural.network import Network
from models.vocabulary import BOS, Vocabulary

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
}
VOCAB_SIZE = 10_001  # odd, like the widths


@cache
def model_of(shape):
    torch.manual_seed(3)
    network = Network(NetworkConfig(**SHAPES[shape]), VOCAB_SIZE)
    for parameter in network.parameters():
        torch.nn.init.uniform_(parameter, -0.6, 0.6)
    return Int8Model(network, Vocabulary([f"w{i}" for i in range(VOCAB_SIZE - 3)]))


@pytest.fixture(params=SHAPES)
def model(request):
    return model_of(request.param)


def sentences(count, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(2, VOCAB_SIZE, n).tolist() for n in random.integers(0, 75, count)]


def scores_of(model, texts):
    """Each text's scores, from one batch."""
    scores = model.score(model.initial_state(len(texts)), *pad_sequences(texts))
    return [row[: len(text)].tolist() for row, text in zip(scores, texts, strict=True)]


class StepByStep:
    """A model with its capabilities to work on whole sequences taken away."""

    def __init__(self, model):
        self.next_log_probs = model.next_log_probs
        self.advance = model.advance


@pytest.mark.parametrize("size", [2, 17, 64, 65])
def test_scores_are_the_same_alone_and_in_any_batch_in_any_order(model, size):
    texts = sentences(size)
    alone = [scores_of(model, [text])[0] for text in texts]
    assert scores_of(model, texts) == alone
    order = np.random.default_rng(1).permutation(size)
    shuffled = scores_of(model, [texts[i] for i in order])
    assert shuffled == [alone[i] for i in order]


@pytest.mark.parametrize("start", ["initial_state", "empty_state"])
@pytest.mark.parametrize("size", [1, 2, 17, 64])
def test_whole_sequences_score_as_step_by_step(model, size, start):
    batch = pad_sequences([text[:12] for text in sentences(size, seed=2)])
    state = getattr(model, start)(size)
    stepwise = score_sequences(StepByStep(model), state, *batch)
    assert (model.score(state, *batch) == stepwise).all()


@pytest.mark.parametrize("size", [1, 3, 64])
def test_reading_at_once_leaves_the_state_of_reading_step_by_step(model, size):
    batch = pad_sequences([text[:12] for text in sentences(size, seed=3)])
    whole = model.prefill(model.initial_state(size), *batch)
    stepwise = prefill_sequences(StepByStep(model), model.initial_state(size), *batch)
    for got, want in zip(whole.hidden, stepwise.hidden, strict=True):
        assert (got == want).all()


def test_distributions_are_the_same_alone_and_in_a_batch(model):
    state = model.prefill(
        model.initial_state(17), *pad_sequences([text[:9] for text in sentences(17, seed=4)])
    )
    together = model.next_log_probs(state)
    for row in range(17):
        assert (model.next_log_probs(state.select(np.array([row])))[0] == together[row]).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_scores_are_the_same_in_any_number_of_threads(model, threads, monkeypatch):
    texts = sentences(30, seed=7)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    expected = scores_of(model, texts)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert scores_of(model, texts) == expected


def test_scores_are_the_same_from_two_threads_at_once(model):
    texts = sentences(24, seed=5)
    expected = scores_of(model, texts)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: scores_of(model, texts), range(4))) == [expected] * 4


def test_a_text_scores_the_same_in_pieces(model):
    text = sentences(1, seed=6)[0] + [5, 6, 7] * 40  # longer than what is read at once
    whole = scores_of(model, [text])[0]
    state = model.initial_state(1)
    pieces = []
    for start in range(0, len(text), 7):
        piece = pad_sequences([text[start : start + 7]])
        pieces += model.score(state, *piece)[0].tolist()
        state = model.prefill(state, *piece)
    assert pieces == whole


def test_rows_sum_to_one_without_the_start(model):
    log_probs = model.next_log_probs(model.prefill(model.initial_state(3), *pad_sequences([[4, 5], [], [9]])))
    assert np.exp(log_probs, dtype=np.float64).sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert (log_probs[:, BOS] == -np.inf).all()
    assert np.isfinite(np.delete(log_probs, BOS, axis=1)).all()
