"""What networks tell as features is what their output layer reads, whatever stands before it."""

import numpy as np
import pytest
import torch

from models.language_model import pad_sequences
from models.neural.int8.network import unsupported_reason
from models.neural.model import Int8Model
from tests import families

BATCH = pad_sequences([[5, 9, 7, 4], [6]])
IN_INTEGERS = [name for name in families.NEURAL if unsupported_reason(families.model(name).config) is None]


@pytest.mark.parametrize("name", families.NEURAL)
def test_the_output_layer_makes_the_distribution_of_the_features(name):
    model = families.model(name)
    state = model.prefill(model.initial_state(2), *BATCH)
    features = model.features(state)
    assert features.shape == (2, model.feature_size)
    with torch.inference_mode():
        log_probs = model.network.output.log_probs(torch.from_numpy(features))
    np.testing.assert_allclose(log_probs.numpy(), model.next_log_probs(state), atol=1e-5)


@pytest.mark.parametrize("name", families.NEURAL)
def test_features_along_a_text_are_those_of_its_states(name):
    model = families.model(name)
    along = model.score_with_features(model.initial_state(2), *BATCH).features
    assert along[0, 3] == pytest.approx(
        model.features(model.prefill(model.initial_state(1), *pad_sequences([[5, 9, 7]])))[0], abs=1e-5
    )
    assert not along[1, 1:].any()


@pytest.mark.parametrize(
    "batch", [BATCH, pad_sequences([[5, 9, 7, 4, 8], [6, 6, 5, 9, 7]]), pad_sequences([[5] * 300])]
)
@pytest.mark.parametrize("name", families.NEURAL)
def test_scores_features_and_state_come_together(name, batch):
    model = families.model(name)
    start = model.initial_state(len(batch[0]))
    reading, state = model.read_with_features(start, *batch), model.prefill(start, *batch)
    assert reading.log_probs == pytest.approx(model.score(start, *batch), abs=1e-5)
    assert reading.features == pytest.approx(model.features_per_token(start, *batch), abs=1e-5)
    assert model.features(reading.state) == pytest.approx(model.features(state), abs=1e-5)
    assert model.next_log_probs(model.read(start, *batch).state) == pytest.approx(
        model.next_log_probs(state), abs=1e-5
    )


@pytest.mark.parametrize("name", IN_INTEGERS)
def test_features_of_integers_are_near_those_of_floats(name):
    single = families.model(name)
    rounded = Int8Model(single.network, single.vocabulary)
    one, other = (
        model.features_per_token(model.initial_state(2), *BATCH)[0].astype(np.float64)
        for model in (single, rounded)
    )
    cosines = (one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    assert cosines.min() > 0.99
