"""Validation texts during training."""

import math

import numpy as np
import pytest
import torch

from models.language_model import BOS
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.neural.run import Validation, sample_rows, sample_sentences
from training.neural.settings import TrainSettings
from training.progress import Progress


@pytest.fixture
def model(vocabulary):
    torch.manual_seed(3)
    return NeuralModel(Network(NetworkConfig(embedding_size=6, hidden_size=10), len(vocabulary)), vocabulary)


def test_sentences_are_capped_evenly_but_never_none(counting):
    sample = sample_sentences(counting, counting.num_tokens // 3)
    assert sample.num_sentences == counting.num_sentences // 3
    assert sample.sentence(1).tolist() == counting.sentence(3).tolist()
    assert sample_sentences(counting, 1).num_sentences == 1
    assert sample_sentences(counting, 10**9).num_sentences == counting.num_sentences


def test_rows_are_running_text_from_all_over(counting):
    text = counting.with_boundaries()
    rows = sample_rows(counting, 1024)
    assert rows.shape == (4, 256)
    np.testing.assert_array_equal(rows[0], text[:256])
    np.testing.assert_array_equal(rows[-1], text[-256:])


@pytest.mark.parametrize("sentences", [[[]], [[3]], [[3, 4]] * 3])
def test_a_short_text_is_one_row(sentences):
    corpus = EncodedCorpus.from_sentences(sentences)
    assert sample_rows(corpus, 10**6).tolist() == [corpus.with_boundaries().tolist()]


def test_a_text_of_one_row_is_scored_as_evaluation_does(model):
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [6, 3], [], [7, 8, 9]])
    for context in ("sentence", "stream"):
        measured = Validation(corpus, TrainSettings(validate_context=context)).perplexity(model)
        expected = evaluate(model, corpus, context=context, progress=Progress()).perplexity
        assert measured == pytest.approx(expected, rel=1e-5)


def test_many_rows_score_each_token_in_its_row(model, counting):
    settings = TrainSettings(validate_context="stream", valid_tokens=1024)
    total, count = 0.0, 0
    for row in sample_rows(counting, 1024):
        state = model.advance(model.empty_state(1), row[:1])
        for token in row[1:]:
            if token != BOS:
                total, count = total + float(model.next_log_probs(state)[0, token]), count + 1
            state = model.advance(state, np.array([token]))
    assert Validation(counting, settings).perplexity(model) == pytest.approx(
        math.exp(-total / count), rel=1e-4
    )


def test_weights_that_are_not_numbers_are_infinitely_bad(model, counting):
    with torch.no_grad():
        model.network.embedding.weight.fill_(math.nan)
    for context in ("sentence", "stream"):
        assert Validation(counting, TrainSettings(validate_context=context)).perplexity(model) == math.inf
