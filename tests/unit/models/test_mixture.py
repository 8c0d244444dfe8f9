"""Linear mixtures: weighted sums, weights by EM, errors."""

import copy

import numpy as np
import pytest
import torch

from models.arrays import on_one_device, to_numpy
from models.errors import InputError, VocabularyMismatchError
from models.language_model import Want, feature_size, pad_sequences, prefill_sequences, score_sequences
from models.mixture import MixtureModel
from models.neural.model import NeuralModel
from models.ngram.cuda.model import TensorNGramModel
from tests.support import families
from tests.support.families import DEVICES
from training.mixture_fitting import fit_weights, fit_weights_by_context
from training.ngram.estimate import estimate
from training.progress import Progress


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
    """Recurrent model that returns distributions as tensors, as on a CUDA device."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def next_log_probs(self, state):
        return torch.as_tensor(self.model.next_log_probs(state))


@pytest.fixture(params=DEVICES)
def mixture_on_device(request):
    """Mixture of the n-gram model and LSTM of `families.model("mixture")` on one device."""
    ngram, lstm = families.model("mixture").parts
    moved = NeuralModel(copy.deepcopy(lstm.network), lstm.vocabulary, device=request.param)
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
    on_host, batch = families.model("mixture"), pad_sequences([[5, 9, 7], [], [0, 38]])
    got = score_sequences(mixture_on_device, mixture_on_device.initial_state(3), *batch)
    expected = score_sequences(on_host, on_host.initial_state(3), *batch)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_one_device_is_where_all_tensors_are():
    here, elsewhere, array = torch.zeros(1), torch.zeros(1, device="meta"), np.zeros(1)
    assert on_one_device([here, here])
    assert not on_one_device([here, elsewhere])
    assert not on_one_device([here, array])
    assert not on_one_device([array, array])


def by_context():
    """Mixture of LSTM and 4-gram model with weights that depend on the n-gram context."""
    return families.model("mixture by context")


def test_the_weights_of_a_distribution_are_those_of_the_context_that_the_ngram_model_knows():
    mixture = by_context()
    state = prefill_sequences(
        mixture, mixture.initial_state(3), *pad_sequences([[5, 9], [0, 0, 0, 0], [5, 6, 7, 8, 9]])
    )
    lstm, ngram = (
        np.exp(to_numpy(part.next_log_probs(s)), dtype=np.float64)
        for part, s in zip(mixture.parts, state.parts, strict=True)
    )
    lengths = mixture.parts[1].context_lengths(state.parts[1])
    assert len(set(lengths.tolist())) > 1
    share = np.array([0.2, 0.4, 0.6, 0.9])[lengths, None]
    expected = share * lstm + (1 - share) * ngram
    assert np.exp(to_numpy(mixture.next_log_probs(state))) == pytest.approx(expected, abs=1e-7)


def lengths_before(model, state, *batch):
    return model.context_lengths(model.read(state, *batch, Want(before=True)).before)


def test_a_context_is_the_longest_suffix_that_the_model_tells_from_shorter_ones():
    """Histories share a state if and only if they share this suffix."""
    ngram = families.model("ngram")
    ids = np.random.default_rng(5).integers(3, 40, 30)
    along = lengths_before(ngram, ngram.empty_state(1), *pad_sequences([ids]))
    for end, length in enumerate(along):
        short = prefill_sequences(ngram, ngram.empty_state(1), *pad_sequences([ids[end - length : end]]))
        whole = prefill_sequences(ngram, ngram.empty_state(1), *pad_sequences([ids[:end]]))
        assert short.ids == whole.ids
        assert ngram.context_lengths(whole) == length
        shorter = prefill_sequences(
            ngram, ngram.empty_state(1), *pad_sequences([ids[end - length + 1 : end]])
        )
        assert length == 0 or shorter.ids != whole.ids


@pytest.mark.parametrize("name", ["ngram", "tensor ngram"])
def test_context_lengths_along_texts_are_those_of_the_states(name):
    model, batch = families.model(name), pad_sequences([[5, 9, 7, 0, 3, 4], [], [6, 7]])
    along = lengths_before(model, model.initial_state(3), *batch)
    assert len(along) == 8
    state = model.initial_state(1)
    for t, token in enumerate([5, 9, 7, 0, 3, 4]):
        assert along[t] == model.context_lengths(state)[0]
        state = model.advance(state, np.array([token]))


def test_a_unigram_model_takes_no_context_into_account():
    model = estimate(families.corpus(), families.tokenizer().vocabulary, order=1, progress=Progress()).model
    assert model.num_context_lengths == 1
    assert (lengths_before(model, model.initial_state(1), *pad_sequences([[5, 6]])) == 0).all()


def test_weights_by_context_must_be_of_the_lengths_that_a_part_tells_apart():
    lstm, ngram = by_context().parts
    with pytest.raises(InputError, match=r"3 context lengths, but part 1 \(ngram\) has 4"):
        MixtureModel([lstm, ngram], [0.5, 0.5], weights_by_context=[[0.5, 0.5]] * 3)
    with pytest.raises(InputError, match="1 context lengths, but no part has any"):
        MixtureModel([lstm, lstm], [0.5, 0.5], weights_by_context=[[0.5, 0.5]])
    with pytest.raises(InputError, match="must be positive and sum to 1"):
        MixtureModel([lstm, ngram], [0.5, 0.5], weights_by_context=[[0.5, 0.5]] * 3 + [[0.5, 0.6]])


def test_a_mixture_has_the_features_of_its_first_part_that_has_any():
    mixture = families.model("mixture")  # n-gram and LSTM
    state = after_two_tokens(mixture)
    lstm = mixture.parts[1]
    assert feature_size(mixture) == feature_size(lstm) == 13
    assert (to_numpy(mixture.features(state)) == to_numpy(lstm.features(state.parts[1]))).all()
    assert feature_size(MixtureModel([mixture.parts[0]], [1.0])) == 0


@pytest.mark.parametrize("name", ["lstm", "mixture", "mixture by context", "cache"])
def test_states_before_tokens_come_with_the_scores_and_predict_the_tokens(name):
    model, batch = families.model(name), pad_sequences([[5, 9, 7, 2, 1, 4], [], [6, 7]])
    start = model.initial_state(3)
    both = model.read(start, *batch, Want(scores=True, before=True))
    assert both.log_probs == pytest.approx(score_sequences(model, start, *batch), abs=1e-6)
    predicted = to_numpy(model.next_log_probs(both.before))
    alone = model.read(start, *batch, Want(before=True)).before
    assert (predicted == to_numpy(model.next_log_probs(alone))).all()
    assert len(predicted) == 8
    state = model.initial_state(1)
    for t, token in enumerate([5, 9, 7, 2, 1, 4]):
        assert predicted[t] == pytest.approx(to_numpy(model.next_log_probs(state))[0], abs=1e-5)
        state = model.advance(state, np.array([token]))


def random_log_probs(num_tokens, seed):
    return np.log(np.random.default_rng(seed).dirichlet(np.ones(9), size=(num_tokens, 3))[:, :, 0])


def test_weights_by_context_are_never_worse_than_common_ones_where_they_were_fitted():
    log_probs = random_log_probs(600, seed=2)
    lengths = np.random.default_rng(3).choice(4, 600, p=[0.005, 0.095, 0.3, 0.6])
    log_probs[lengths == 2, 0] += 1  # one part is better for this length
    weights = fit_weights(log_probs)
    table = np.array(fit_weights_by_context(log_probs, lengths, num_lengths=5, weights=weights))
    common = np.log(np.exp(log_probs) @ weights)
    by_length = np.log((np.exp(log_probs) * table[lengths]).sum(axis=1))
    assert by_length.sum() > common.sum() + 1
    for length in range(4):
        assert by_length[lengths == length].sum() >= common[lengths == length].sum() - 1e-9
    assert table.sum(axis=1) == pytest.approx(1)
    assert table[4] == pytest.approx(weights)  # no data of this length


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
    with pytest.raises(InputError, match="no token to fit mixture weights"):
        fit_weights(np.zeros((0, 2)))


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.6], [1.5, -0.5], [1.0, 0.0], [float("nan"), 1.0]])
def test_weights_must_be_a_distribution_over_the_parts(weights):
    with pytest.raises(InputError, match="weights"):
        MixtureModel([families.model("ngram"), families.model("lstm")], weights)


def test_parts_must_share_a_vocabulary():
    from models.language_model import Vocabulary

    other = estimate(
        families.corpus(), Vocabulary([f"v{i}" for i in range(37)]), order=2, progress=Progress()
    ).model
    with pytest.raises(VocabularyMismatchError, match="part 1"):
        MixtureModel([families.model("ngram"), other], [0.5, 0.5])
