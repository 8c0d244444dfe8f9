"""Linear mixtures: the sum they say they are, weights by EM, refusals."""

import numpy as np
import pytest

from models.arrays import to_numpy
from models.errors import InvalidInputError, VocabularyMismatchError
from models.mixture import MixtureModel, fit_weights
from tests import families


def test_probabilities_are_the_weighted_sum_of_the_parts():
    mixture = families.model("mixture")
    state = mixture.advance(mixture.initial_state(2), np.array([5, 9]))
    parts = [
        np.exp(to_numpy(part.next_log_probs(s)), dtype=np.float64)
        for part, s in zip(mixture.parts, state.parts, strict=True)
    ]
    expected = 0.7 * parts[0] + 0.3 * parts[1]
    assert np.exp(to_numpy(mixture.next_log_probs(state))) == pytest.approx(expected, abs=1e-7)


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
