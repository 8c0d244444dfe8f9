"""Drawing tokens."""

import numpy as np
import pytest

from models.decoding.batch import Batch
from models.decoding.choosing import IMPOSSIBLE, choose
from models.decoding.draws import Draws
from models.decoding.parameters import DecodingParameters
from models.decoding.ranking import top_tokens
from models.vocabulary import BOS, EOS, UNK
from tests import slow_decoding

NO_PROMPT = np.zeros(0, np.int64)


def chosen(log_probs, numbers, **options):
    """A token for each number, from one distribution."""
    parameters = DecodingParameters(max_tokens=1, **options)
    rows = np.tile(np.asarray(log_probs, np.float32), (len(numbers), 1))
    return choose(rows, Batch(parameters, [NO_PROMPT] * len(numbers)).rows(), np.asarray(numbers))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.7},
        {"top_k": 100},
        {"typical_p": 0.6},
        {"top_p": 0.9},
        {"min_p": 0.02},
        {"temperature": 0.9, "top_k": 400, "typical_p": 0.9, "top_p": 0.9, "min_p": 0.005},
    ],
)
def test_draws_follow_the_distribution(options):
    """χ² of 40 000 draws over 600 tokens, in as many bins as are full, stays below its 99.99 % quantile."""
    rng, count = np.random.default_rng(7), 40_000
    row = (rng.normal(size=600) * 2 - 4).astype(np.float32)
    parameters = DecodingParameters(max_tokens=1, **options)
    p = slow_decoding.distribution(slow_decoding.scores(row, parameters), parameters)
    seen = np.zeros(600)
    for part in np.split(rng.random(count), 40):
        seen += np.bincount(chosen(row, part, **options), minlength=600)
    assert not seen[p == 0].any()
    full = p * count >= 10
    expected = np.append(p[full], p[~full].sum()) * count
    observed = np.append(seen[full], seen[~full].sum())
    degrees = len(expected) - 1
    chi2 = ((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    assert chi2 < degrees + 3.72 * np.sqrt(2 * degrees) + 9  # of the normal approximation, and its skew


def test_a_token_without_probability_is_never_drawn():
    row = [-np.inf] * 3 + [-np.inf, 0.0, -np.inf, 0.0, -np.inf]
    assert set(chosen(row, [0.0, 0.5, 1 - 2**-53]).tolist()) == {4, 6}


def test_the_last_number_below_one_draws_the_last_possible_token():
    """Also where it lies several blocks before the end of the row."""
    row = np.full(5000, -np.inf)
    row[[3, 2040]] = 0.0
    assert chosen(row, [0.0, 1 - 2**-53]).tolist() == [3, 2040]


def test_control_tokens_but_the_end_are_never_chosen():
    row = np.log([0.4, 0.4, 0.1, 0.1])
    assert set(chosen(row, np.linspace(0, 0.999, 50)).tolist()) == {EOS, 3}
    assert chosen(row, [0.5], strategy="greedy")[0] == EOS


def test_where_nothing_is_possible_nothing_is_chosen():
    row = [0.0] + [-np.inf] * 4
    assert UNK == BOS - 1 == 0
    for options in ({}, {"strategy": "greedy"}, {"top_p": 0.5}):
        assert chosen(row, [0.5], **options)[0] == IMPOSSIBLE


def test_the_most_probable_of_equals_has_the_smallest_id():
    assert chosen([-9.0, -9.0, -2.0, -1.0, -1.0], [0.0], strategy="greedy")[0] == 3


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-30, 1e-3])
def test_a_temperature_next_to_nothing_leaves_the_most_probable(temperature):
    row = np.log([0.1, 0.1, 0.1, 0.4, 0.3])
    assert set(chosen(row, np.linspace(0, 0.999, 20), temperature=temperature).tolist()) == {3}


@pytest.mark.parametrize(("p", "expected"), [(0.01, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.9, 3), (0.99, 4)])
def test_top_p_keeps_the_fewest_tokens_that_reach_p(p, expected):
    row = np.append([-np.inf] * 3, np.log([0.5, 0.3, 0.15, 0.05]))
    assert len(set(chosen(row, np.linspace(0, 0.999, 200), top_p=p).tolist())) == expected


def test_top_p_counts_after_the_temperature():
    row = np.append([-np.inf] * 3, np.log([0.5, 0.3, 0.15, 0.05]))
    numbers = np.linspace(0, 0.999, 200)
    assert len(set(chosen(row, numbers, top_p=0.5, temperature=10.0).tolist())) == 2
    assert len(set(chosen(row, numbers, top_p=0.5, temperature=0.5).tolist())) == 1


def test_typical_leaves_out_what_is_too_probable():
    """The entropy is nearer to the surprisal of the common one among ten, and of the rare ones among seventy."""
    row = np.append([-np.inf] * 3, np.log([0.6] + [0.04] * 10))
    kept = set(chosen(row, np.linspace(0, 0.999, 500), typical_p=0.3).tolist())
    assert kept == {3}
    flat = np.append([-np.inf] * 3, np.log([0.3] + [0.01] * 70))
    assert 3 not in chosen(flat, np.linspace(0, 0.999, 500), typical_p=0.5)


def test_draws_are_each_rows_own():
    streams = [(0, 0), (0, 1), (1, 0)]
    together = Draws(5, streams)
    numbers = np.stack([together.take() for _ in range(150)])
    for column, stream in enumerate(streams):
        alone = Draws(5, [stream])
        assert [alone.take()[0] for _ in range(150)] == numbers[:, column].tolist()
    assert len(np.unique(numbers)) == numbers.size


def test_draws_go_on_when_other_rows_have_left():
    all_, some = Draws(5, [(0, 0), (0, 1), (0, 2)]), Draws(5, [(0, 0), (0, 1), (0, 2)])
    for _ in range(10):
        np.testing.assert_array_equal(all_.take(), some.take())
    some.select([2, 0])
    for _ in range(100):
        np.testing.assert_array_equal(all_.take()[[2, 0]], some.take())


def test_top_tokens_are_sorted_and_equals_stand_by_id():
    row = np.array([-3.0, -1.0, -2.0, -1.0, -2.0], dtype=np.float32)
    assert top_tokens(row, 4).ids.tolist() == [1, 3, 2, 4]
    assert top_tokens(row, 5).log_probs.tolist() == [-1.0, -1.0, -2.0, -2.0, -3.0]
