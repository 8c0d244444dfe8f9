"""What a cache computes with: unit vectors, their products, weights and sums, each the same bits in any company."""

import numpy as np
import pytest

from models.cache.history import History
from models.cache.kernels import (
    SEGMENT_TOKENS,
    VECTOR_LANES,
    SimilarityDecay,
    inner_products,
    to_unit_vectors,
)
from models.cache.model import score_with_history

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (1, 131), (3, 2), (4, 4), (7, 131), (130, 9)])
def test_products_are_those_of_double_precision(rows, count):
    queries, keys = (RANDOM.normal(size=(n, 3 * VECTOR_LANES)).astype(np.float32) for n in (rows, count))
    out = np.zeros((rows, count + 11), np.float32)
    inner_products(queries, keys, 9, out)
    expected = queries.astype(np.float64) @ keys.T.astype(np.float64)
    assert out[:, 9:-2] == pytest.approx(expected, abs=1e-5)
    assert not out[:, :9].any()
    assert not out[:, -2:].any()


def test_a_product_is_the_same_bits_whatever_is_computed_beside_it():
    queries, keys = (RANDOM.normal(size=(n, 25 * VECTOR_LANES)).astype(np.float32) for n in (23, 71))
    whole = np.empty((23, 71), np.float32)
    inner_products(queries, keys, 0, whole)
    for rows in (slice(0, 1), slice(5, 8), slice(2, 9), slice(21, 23)):
        for columns in (slice(0, 1), slice(67, 71), slice(30, 69)):
            alone = np.empty(whole[rows, columns].shape, np.float32)
            inner_products(queries[rows], keys[columns], 0, alone)
            assert (alone == whole[rows, columns]).all()


def test_unit_vectors_have_length_one_and_their_direction():
    features = (
        RANDOM.normal(size=(9, 37)).astype(np.float32) * np.logspace(-15, 15, 9, dtype=np.float32)[:, None]
    )
    units = to_unit_vectors(features)
    assert units.shape == (9, 3 * VECTOR_LANES)
    exact = features.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    np.testing.assert_allclose(units[:, :37], exact, rtol=2e-7)
    assert not units[:, 37:].any()
    assert all((to_unit_vectors(features[n : n + 1])[0] == units[n]).all() for n in range(9))


def test_a_vector_without_length_stays_zero():
    assert not to_unit_vectors(np.zeros((2, 5), np.float32)).any()


def slowly(tokens, units, window, flatness, half_life):
    """The last token's share of what was remembered, and the sum of that, in double precision: the definition."""
    *remembered, target = tokens[-window - 1 :]
    alike = units[-len(remembered) - 1 : -1].astype(np.float64) @ units[-1].astype(np.float64)
    ages = np.arange(len(remembered))[::-1]
    weights = np.exp(flatness * alike) * 0.5 ** (0 if half_life is None else ages / half_life)
    share = weights[np.array(remembered) == target].sum() / weights.sum()
    return share, weights.sum() * np.exp(-flatness)


def test_shares_are_those_of_double_precision():
    """In a window of more than a stretch, of texts whose tokens resemble their neighbours."""
    count, window = 3 * SEGMENT_TOKENS, SEGMENT_TOKENS + 77
    tokens = RANDOM.integers(3, 40, count)
    units = to_unit_vectors(np.cumsum(RANDOM.normal(size=(count, 20)), axis=0).astype(np.float32))
    flatnesses, half_lives = (0.0, 14.0, 32.0), (1.5, 300.0, None)
    weighing = SimilarityDecay.of(flatnesses, half_lives, window=window)
    history = History.empty(window=window, width=units.shape[1])
    shares, evidence, _ = score_with_history(history, tokens, units, decay=weighing)
    assert not shares[0].any()
    assert not evidence[0].any()
    for t in (1, 2, *range(99, count, 997)):
        for f, flatness in enumerate(flatnesses):
            for h, half_life in enumerate(half_lives):
                share, total = slowly(tokens[: t + 1], units[: t + 1], window, flatness, half_life)
                assert shares[t, f, h] == pytest.approx(share, rel=1e-5, abs=1e-30)
                assert evidence[t, f, h] == pytest.approx(total, rel=1e-5, abs=1e-30)


def test_of_a_half_life_near_nothing_the_newest_token_is_left():
    tokens = np.array([5, 6, 6, 5])
    history = History.empty(window=4, width=0)
    weighing = SimilarityDecay.of((0.0,), (5e-324,), window=4)
    shares, evidence, _ = score_with_history(history, tokens, np.zeros((4, 0), np.float32), decay=weighing)
    assert shares[:, 0, 0].tolist() == [0, 0, 1, 0]
    assert evidence[:, 0, 0].tolist() == [0, 1, 1, 1]


def test_a_share_does_not_depend_on_what_else_is_tried():
    tokens = RANDOM.integers(3, 40, 3_000)
    units = to_unit_vectors(RANDOM.normal(size=(3_000, 20)).astype(np.float32))
    history = History.empty(window=2_100, width=units.shape[1])

    def shares(flatnesses, half_lives):
        weighing = SimilarityDecay.of(flatnesses, half_lives, window=2_100)
        return score_with_history(history, tokens, units, decay=weighing).shares

    together = shares((3.0, 9.0), (50.0, None, 700.0))
    assert (together[:, 1, 2] == shares((9.0,), (700.0,))[:, 0, 0]).all()
