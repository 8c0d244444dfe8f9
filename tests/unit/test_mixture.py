"""Linear mixtures: the sum they say they are, weights by EM, refusals."""

import copy

import numpy as np
import pytest
import torch

from models.arrays import on_one_device, to_numpy
from models.errors import InvalidInputError, VocabularyMismatchError
from models.mixture import MixtureModel, fit_weights
from models.neural.model import NeuralModel
from models.ngram.device.model import TensorNGramModel
from models.scoring import pad, score_sequences
from tests import families
from tests.devices import DEVICES


def test_probabilities_are_the_weighted_sum_of_the_parts():
    mixture = families.model("mixture")
    state = mixture.advance(mixture.initial_state(2), np.array([5, 9]))
    parts = [
        np.exp(to_numpy(part.next_log_probs(s)), dtype=np.float64)
        for part, s in zip(mixture.parts, state.parts, strict=True)
    ]
    expected = 0.7 * parts[0] + 0.3 * parts[1]
    assert np.exp(to_numpy(mixture.next_log_probs(state))) == pytest.approx(expected, abs=1e-7)


class AnsweringInTensors:
    """A recurrent model whose distributions stay tensors on a CPU too, as they do on a CUDA device."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def next_log_probs(self, state):
        return torch.as_tensor(self.model.next_log_probs(state))


@pytest.fixture(params=DEVICES)
def mixture_on_device(request):
    """The parts of `families.model("mixture")`, n-gram and LSTM, on one device."""
    ngram, lstm = families.model("mixture").parts
    moved = NeuralModel(copy.deepcopy(lstm._network), lstm.vocabulary, device=request.param)
    return MixtureModel(
        [TensorNGramModel(ngram, device=request.param), AnsweringInTensors(moved)], [0.7, 0.3]
    )


def after_two_tokens(model):
    return model.advance(model.advance(model.initial_state(2), np.array([5, 9])), np.array([0, 7]))


def test_parts_on_one_device_are_mixed_there_into_the_same(mixture_on_device):
    mixed = mixture_on_device.next_log_probs(after_two_tokens(mixture_on_device))
    assert isinstance(mixed, torch.Tensor)
    on_host = families.model("mixture")
    expected = to_numpy(on_host.next_log_probs(after_two_tokens(on_host)))
    np.testing.assert_allclose(mixed.cpu(), expected, atol=1e-5)


def test_a_mixture_in_a_mixture_stays_on_the_device(mixture_on_device):
    nested = MixtureModel([mixture_on_device, mixture_on_device], [0.4, 0.6])
    once = mixture_on_device.next_log_probs(after_two_tokens(mixture_on_device))
    twice = nested.next_log_probs(after_two_tokens(nested))
    assert twice.device == once.device
    np.testing.assert_allclose(twice.cpu(), once.cpu(), atol=1e-5)


def test_parts_that_answer_in_different_places_are_mixed_on_the_host():
    on_host = families.model("mixture")
    ngram, lstm = on_host.parts
    mixture = MixtureModel([TensorNGramModel(ngram, device="cpu"), lstm], [0.7, 0.3])
    mixed = mixture.next_log_probs(after_two_tokens(mixture))
    assert isinstance(mixed, np.ndarray)
    np.testing.assert_allclose(mixed, to_numpy(on_host.next_log_probs(after_two_tokens(on_host))), atol=1e-6)


def test_sequences_score_the_same_wherever_the_parts_are(mixture_on_device):
    on_host, batch = families.model("mixture"), pad([[5, 9, 7], [], [0, 38]])
    got = score_sequences(mixture_on_device, mixture_on_device.initial_state(3), *batch)
    expected = score_sequences(on_host, on_host.initial_state(3), *batch)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_one_device_is_where_all_tensors_are():
    here, elsewhere, array = torch.zeros(1), torch.zeros(1, device="meta"), np.zeros(1)
    assert on_one_device([here, here])
    assert not on_one_device([here, elsewhere])
    assert not on_one_device([here, array])
    assert not on_one_device([array, array])


def test_em_finds_the_weights_that_made_the_data():
    random = np.random.default_rng(0)
    p = random.dirichlet(np.ones(5), size=2)  # two unigram models
    true = np.array([0.8, 0.2])
    tokens = random.choice(5, size=40_000, p=true @ p)
    assert fit_weights(np.log(p[:, tokens].T)) == pytest.approx(true, abs=0.05)


def test_em_never_makes_held_out_text_less_probable_than_equal_weights():
    random = np.random.default_rng(1)
    p = random.random((500, 3)) + 1e-9
    weights = np.array(fit_weights(np.log(p)))
    assert np.log(p @ weights).sum() >= np.log(p @ np.full(3, 1 / 3)).sum()
    assert weights.sum() == pytest.approx(1)


def test_em_stands_tokens_that_a_part_or_every_part_thinks_impossible():
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array([[0.5, 0.0], [0.0, 0.25], [0.0, 0.0], [0.5, 0.5]]))
    weights = fit_weights(log_probs)
    assert all(np.isfinite(weights))
    assert sum(weights) == pytest.approx(1)


def test_no_held_out_token_means_no_weights():
    with pytest.raises(InvalidInputError, match="no held-out token"):
        fit_weights(np.zeros((0, 2)))


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.6], [1.5, -0.5], [1.0, 0.0], [float("nan"), 1.0]])
def test_weights_must_be_a_distribution_over_the_parts(weights):
    with pytest.raises(InvalidInputError, match="weights"):
        MixtureModel([families.model("ngram"), families.model("lstm")], weights)


def test_parts_must_share_a_vocabulary():
    from models.vocabulary import Vocabulary
    from training.ngram.estimate import estimate
    from training.progress import Silent

    other = estimate(
        families.corpus(), Vocabulary([f"v{i}" for i in range(37)]), order=2, progress=Silent()
    ).model
    with pytest.raises(VocabularyMismatchError, match="part 1"):
        MixtureModel([families.model("ngram"), other], [0.5, 0.5])
