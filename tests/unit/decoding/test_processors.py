"""What is left of a distribution before a token is drawn."""

import numpy as np
import pytest

from models.decoding.parameters import DecodingParameters
from models.decoding.processors import apply_temperature, keep_top_k, keep_top_p, mask, process

P = np.array([[0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.25, 0.25]])
LOG = np.log(P).astype(np.float32)


def kept(log_probs):
    return np.isfinite(log_probs)


def test_masked_ids_are_impossible_and_the_argument_unchanged():
    before = LOG.copy()
    assert not kept(mask(LOG, [1, 2]))[:, [1, 2]].any()
    np.testing.assert_array_equal(LOG, before)


def test_temperature_raises_probabilities_to_a_power():
    sharp = np.exp(apply_temperature(LOG, 0.5))
    np.testing.assert_allclose(
        sharp / sharp.sum(1, keepdims=True), P**2 / (P**2).sum(1, keepdims=True), rtol=1e-5
    )


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 100.0])
def test_no_temperature_makes_nonsense(temperature):
    out = apply_temperature(np.array([[-1000.0, -2.0, -np.inf]], dtype=np.float32), temperature)
    assert not np.isnan(out).any()
    assert out[0, 1] == 0


def test_top_k_keeps_the_smaller_ids_among_equals():
    np.testing.assert_array_equal(kept(keep_top_k(LOG, 2)), [[1, 1, 0, 0], [1, 1, 0, 0]])


def test_top_k_never_revives_the_impossible():
    row = np.array([[0.0, -np.inf, -np.inf]], dtype=np.float32)
    np.testing.assert_array_equal(kept(keep_top_k(row, 2)), [[1, 0, 0]])


@pytest.mark.parametrize(("p", "expected"), [(0.01, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.9, 3), (0.99, 4)])
def test_top_p_keeps_the_fewest_tokens_that_reach_p(p, expected):
    assert kept(keep_top_p(LOG[:1].astype(np.float64), p)).sum() == expected


def test_top_p_counts_after_the_temperature():
    hot = DecodingParameters(max_tokens=1, temperature=10.0, top_p=0.5)
    cold = DecodingParameters(max_tokens=1, temperature=0.5, top_p=0.5)
    assert kept(process(LOG[:1], hot, forbidden=())).sum() == 2
    assert kept(process(LOG[:1], cold, forbidden=())).sum() == 1


def test_greedy_masks_and_nothing_else():
    parameters = DecodingParameters(max_tokens=1, strategy="greedy", top_k=1, temperature=3.0)
    out = process(LOG, parameters, forbidden=(0,))
    np.testing.assert_array_equal(out[:, 1:], LOG[:, 1:])


@pytest.mark.parametrize("temperature", [5e-324, 1e-300])
def test_a_temperature_next_to_nothing_leaves_the_most_probable(temperature):
    """Without a warning, which would be a failure here."""
    out = apply_temperature(np.log(np.array([[0.5, 0.3, 0.2]], dtype=np.float32)), temperature)
    np.testing.assert_array_equal(out, [[0, -np.inf, -np.inf]])
