"""Rows of shared states, shares of a batch, and rejection of non-finite results."""

import numpy as np
import pytest

from models.calls import StateView, check_no_nan, gather_states, join_states, materialize, split_rows
from service.engine.batching import split_budget
from service.engine.prefill import slice_width


class Numbers:
    """State with one number per row that counts its copies."""

    copies = 0

    def __init__(self, numbers):
        self.numbers = list(numbers)

    def __len__(self):
        return len(self.numbers)

    def select(self, rows):
        Numbers.copies += 1
        return Numbers([self.numbers[row] for row in rows])

    def concatenate(self, others):
        Numbers.copies += 1
        return Numbers(self.numbers + [n for other in others for n in other.numbers])


def test_rows_that_go_on_together_are_not_copied():
    whole = Numbers(range(6))
    before = Numbers.copies
    assert gather_states(split_rows(whole, [1, 3, 2])) is whole
    assert Numbers.copies == before


def test_rows_that_are_left_are_selected_once():
    parts = split_rows(Numbers(range(6)), [1, 3, 2])
    before = Numbers.copies
    assert gather_states([parts[0], parts[2]]).numbers == [0, 4, 5]
    assert Numbers.copies == before + 1


def test_states_of_many_origins_stand_in_order():
    first, second = Numbers([10, 11]), Numbers([20, 21, 22])
    mixed = [
        StateView(second, np.array([2])),
        first,
        StateView(second, np.array([0, 0])),
        StateView(first, np.array([1])),
    ]
    assert gather_states(mixed).numbers == [22, 10, 11, 20, 20, 11]


def test_selections_of_selections_compose():
    rows = StateView(Numbers(range(5)), np.array([4, 2, 0])).select(np.array([1, 1, 2]))
    assert materialize(rows).numbers == [2, 2, 0]
    assert materialize(join_states([rows, Numbers([7])])).numbers == [2, 2, 0, 7]


def test_all_get_what_they_want_where_there_is_room():
    assert split_budget([3, 5, 2], [3, 90, 2], 10) == [3, 5, 2]


def test_the_shortest_and_the_oldest_share_a_slice_that_is_too_small():
    assert split_budget([8, 8, 8, 4], [2000, 2000, 2000, 4], 8) == [4, 0, 0, 4]


def test_a_call_of_many_rows_leaves_half_to_those_that_are_sooner_done():
    assert split_budget([40_000, 8, 8], [100_000, 26, 26], 128) == [112, 8, 8]


def test_of_equal_calls_the_oldest_go_first():
    assert split_budget([8] * 4, [26] * 4, 16) == [8, 8, 0, 0]


@pytest.mark.parametrize(
    ("left", "count", "width"),
    [
        ([5, 2000], 128, 10),  # a short text does not wait for a long one
        ([20, 38, 200], 100, 42),  # up to twice the share is not cut
        ([2000], 128, 128),
        ([26] * 16, 128, 8),
        ([2, 26, 26, 26], 38, 12),  # capacity left by short texts is shared
        ([26] * 200, 128, 1),  # at least one column
        ([3, 7], 128, 7),  # all remaining tokens
    ],
)
def test_columns_of_a_slice(left, count, width):
    assert slice_width(np.array(left), count) == width


@pytest.mark.parametrize("values", [[[-1.0, -np.inf]], [], [[0.0]]])
def test_log_probabilities_are_let_through(values):
    array = np.array(values, dtype=np.float32)
    assert check_no_nan(array) is array


def test_one_that_is_no_number_is_not():
    with pytest.raises(FloatingPointError, match="NaN"):
        check_no_nan(np.array([[-1.0, -2.0], [np.nan, -3.0]], dtype=np.float32))
