"""8-bit integer kernels: rounding, products, elementary functions."""

import platform
import re

import numba
import numpy as np
import pytest

from models.kernels.log_sum_exp import add_exp_in_lanes, block_sums_in_lanes
from models.kernels.math import exp, fold_lanes
from models.neural.int8 import kernels
from models.neural.int8.layers import normalise_rows, sigmoid_in_place, tanh_in_place
from models.neural.int8.matrix import (
    SPARE_ROWS,
    gather_rows,
    multiply_row_pairs,
    multiply_rows,
    quantise_matrix,
    quantise_rows,
    take_rows,
    zero_int8_rows,
)
from models.neural.int8.output import score_targets, write_logits

LEVELS = {
    "words, a row": (1, kernels._dot_intrinsic(1, kernels._WORD_ARITHMETIC)),
    "words, four rows": (4, kernels._dot_intrinsic(4, kernels._WORD_ARITHMETIC)),
}
"""Dot-product kernels that this processor supports, and the number of rows of each."""
if kernels.HAS_VNNI:
    LEVELS["VNNI, a row"] = (1, kernels._dot_intrinsic(1, kernels._BYTE_ARITHMETIC))
    LEVELS["VNNI, four rows"] = (4, kernels._dot_intrinsic(4, kernels._BYTE_ARITHMETIC))


def random_matrix(rows, columns, seed=0):
    return np.random.default_rng(seed).normal(0, 0.3, (rows, columns)).astype(np.float32)


def as_floats(rows, count, width):
    return rows.values[:count, :width] * rows.scales[:count, None].astype(np.float64)


@pytest.mark.parametrize("width", [1, 13, 64, 511])
def test_rows_are_rounded_to_half_a_step_with_the_largest_exact(width):
    vectors = random_matrix(5, width)
    rows = zero_int8_rows(5, width)
    quantise_rows(vectors, rows, 0)
    steps = np.abs(vectors).max(axis=1) / 127
    assert (np.abs(as_floats(rows, 5, width) - vectors) <= 0.501 * steps[:, None]).all()
    assert (np.abs(rows.values[:5]).max(axis=1) == 127).all()
    assert (rows.sums[:5] == rows.values[:5].sum(axis=1)).all()


def test_a_row_of_zeros_stays_one():
    rows = zero_int8_rows(1, 9)
    quantise_rows(np.zeros((1, 9), np.float32), rows, 0)
    assert not as_floats(rows, 1, 9).any()


def integers_of(matrix):
    """Row-wise weights in 255 steps and the step sizes, with NumPy's rounding."""
    steps = np.abs(matrix).max(axis=1) / np.float32(127)
    return np.rint(matrix / steps[:, None]).astype(np.int64), steps


@pytest.mark.parametrize("count", [1, 2, 4, 5, 7, 16, 17, 33, 40])
@pytest.mark.parametrize("shape", [(1, 1), (64, 4), (65, 5), (130, 511)])
def test_products_equal_those_of_the_integers(count, shape):
    matrix, vectors = random_matrix(*shape), random_matrix(count + 1, shape[1], seed=1)
    packed, rows = quantise_matrix(matrix), zero_int8_rows(count + 1, shape[1])
    quantise_rows(vectors, rows, 0)
    bias = np.linspace(-1, 1, len(packed.scales), dtype=np.float32)
    products = np.empty((count, len(packed.scales)), np.float32)
    multiply_rows(packed, bias, rows, 1, count, products)
    weights, steps = integers_of(matrix)
    activations, scales = integers_of(vectors[1:])
    exact = (activations @ weights.T).astype(np.float32).astype(np.float64)
    expected = (exact * (scales[:, None] * steps) + bias[: len(matrix)]).astype(np.float32)
    assert (np.abs(products[:, : len(matrix)] - expected) <= np.spacing(np.abs(expected))).all()


def test_one_product_a_row_is_that_of_all():
    packed, rows = quantise_matrix(random_matrix(130, 7)), zero_int8_rows(3, 7)
    quantise_rows(random_matrix(3, 7, seed=1), rows, 0)
    bias = np.linspace(-1, 1, len(packed.scales), dtype=np.float32)
    everything, ids = np.empty((3, len(bias)), np.float32), np.array([129, 0, 64])
    multiply_rows(packed, bias, rows, 0, 3, everything)
    single = np.empty(3, np.float32)
    multiply_row_pairs(packed, bias, rows, ids, single)
    assert (single == everything[np.arange(3), ids]).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", [64, 192])
def test_every_level_of_the_processor_sums_integers_exactly(level, width):
    """Includes the largest integers, in the second of two weight blocks and from the second row on."""
    count, tile = LEVELS[level]

    @numba.njit
    def fill(weights, start, activations, groups, sums):
        tile(weights, start, activations, 1, groups, sums)

    random = np.random.default_rng(2)
    weights = random.integers(0, 256, (2, width // 4, 64, 4)).astype(np.uint8)  # [block, group, row, column]
    activations = random.integers(-128, 128, (1 + count, width)).astype(np.int8)
    weights[1, :, :2], activations[1] = 255, 127
    weights[1, :, 2], activations[-1, ::2] = 0, -128
    sums = np.zeros((count, 64), np.int32)
    fill(weights.reshape(-1), width * 64, activations, width // 4, sums.reshape(-1))
    columns = weights[1].astype(np.int64).transpose(1, 0, 2).reshape(64, width)
    assert (sums == activations[1:].astype(np.int64) @ columns.T).all()
    if level.startswith("words") and platform.machine() == "x86_64":
        (assembly,) = fill.inspect_asm().values()
        assert re.search("pmaddwd|vpdpwssd", assembly), "LLVM no longer recognises sums of two products"


def test_a_looked_up_row_is_the_row_of_the_matrix():
    matrix = random_matrix(130, 7)
    packed, rows = quantise_matrix(matrix), zero_int8_rows(4, 7)
    assert gather_rows(packed, 130, np.array([129, 0, 64]), rows, 1) == 0
    looked_up = as_floats(rows, 4, 7)[1:]
    assert looked_up == pytest.approx(matrix[[129, 0, 64]], abs=0.51 * float(np.abs(matrix).max()) / 127)
    assert (rows.sums[1:4] == rows.values[1:4].sum(axis=1)).all()


@pytest.mark.parametrize("width", [1, 64, 131])
def test_normalised_rows_have_mean_0_and_variance_1_before_they_are_scaled(width):
    vectors = random_matrix(3, width) * 5 + 1
    weight, bias = random_matrix(2, width, seed=1)
    normalised = np.empty_like(vectors)
    normalise_rows(np.stack([weight, bias]), vectors, normalised)
    exact = vectors.astype(np.float64)
    centred = exact - exact.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt(exact.var(axis=1, keepdims=True) + 1e-5) * weight + bias
    assert normalised == pytest.approx(expected, abs=1e-5)


def test_taken_rows_keep_their_scales_and_leave_room_to_read_on():
    rows = zero_int8_rows(6, 5)
    quantise_rows(random_matrix(6, 5), rows, 0)
    taken = take_rows(rows, np.array([4, 4, 1]))
    assert (as_floats(taken, 3, 5) == as_floats(rows, 6, 5)[[4, 4, 1]]).all()
    assert len(taken.values) == 3 + SPARE_ROWS


@pytest.mark.parametrize(
    ("kernel", "reference"), [(sigmoid_in_place, lambda x: 1 / (1 + np.exp(-x))), (tanh_in_place, np.tanh)]
)
def test_elementary_functions_are_right_everywhere(kernel, reference):
    values = np.concatenate([np.linspace(-60, 60, 24_001), [0.0, -1e30, 1e30, 3e38, -3e38]])
    got = values.astype(np.float32)
    kernel(got)
    with np.errstate(over="ignore"):
        assert np.abs(got - reference(values.astype(np.float32).astype(np.float64))).max() < 3e-7


def test_elementary_functions_do_not_depend_on_where_a_value_stands():
    values = random_matrix(1, 257)[0] * 10
    together = values.copy()
    tanh_in_place(together)
    for place in range(len(values)):
        alone = values[place : place + 1].copy()
        tanh_in_place(alone)
        assert alone[0] == together[place]


def test_exponentials_in_lanes_are_those_of_single_numbers():
    values = np.concatenate([random_matrix(1, 190)[0] * 90, [0, -3e38]]).astype(np.float32)

    @numba.njit
    def in_lanes(values, highest, lanes):
        add_exp_in_lanes(values, len(values), highest, lanes)

    @numba.njit
    def one_by_one(values, highest, lanes):
        for place in range(len(values)):
            lanes[place % 64] += exp(values[place] - highest)

    together, alone = np.ones(64, np.float32), np.ones(64, np.float32)
    in_lanes(values, values.max(), together)
    one_by_one(values, values.max(), alone)
    assert (together == alone).all()


@pytest.mark.parametrize("temperature", [1, 0.7])
def test_weights_of_blocks_are_those_of_single_numbers(temperature):
    values = random_matrix(3, 64).reshape(-1) * 90
    values[70] = -np.inf
    inverse = np.float32(1) / np.float32(temperature)

    @numba.njit
    def together(values, highest, inverse, lanes, sums):
        block_sums_in_lanes(values, len(values), highest, inverse, lanes, sums)

    @numba.njit
    def one_by_one(values, highest, inverse, lanes, sums):
        for block in range(len(sums)):
            weights = np.empty(64, np.float32)
            for place in range(64):
                below = values[block * 64 + place] - highest
                lanes[place] += exp(below)
                weights[place] = exp(below * inverse)
            sums[block] = fold_lanes(weights)

    told, expected = ((np.ones(64, np.float32), np.empty(3, np.float32)) for _ in range(2))
    together(values, values.max(), inverse, *told)
    one_by_one(values, values.max(), inverse, *expected)
    assert (told[0] == expected[0]).all()
    assert (told[1] == expected[1]).all()


@pytest.mark.parametrize("vocab_size", [640, 2500])
def test_the_logarithm_of_the_sum_is_exact_and_blind_to_what_is_never_predicted(vocab_size):
    packed, rows = quantise_matrix(random_matrix(vocab_size, 70) * 8), zero_int8_rows(3, 70)
    quantise_rows(random_matrix(3, 70, seed=1), rows, 0)
    bias = np.full(len(packed.scales), -np.inf, np.float32)
    bias[2 : vocab_size - 2] = 0
    logits, log_sums = np.empty((3, len(bias)), np.float32), np.empty(3, np.float32)
    write_logits(packed, bias, rows, 0, logits, log_sums)
    expected = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
    assert log_sums == pytest.approx(expected, abs=2e-6)
    ids, log_probs = np.array([2, vocab_size - 3, 500]), np.empty(3, np.float32)
    score_targets(packed, bias, rows, 0, ids, log_probs)
    assert (log_probs == logits[np.arange(3), ids] - log_sums).all()
