"""Who gets what of a slice, and how many columns that comes to."""

import numpy as np
import pytest

from service.engine.batching import split_budget
from service.engine.prefill import slice_width


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
        ([5, 2000], 128, 10),  # the short one is not kept waiting for the long one
        ([20, 38, 200], 100, 42),  # but who needs no more than twice as much is not cut off
        ([2000], 128, 128),
        ([26] * 16, 128, 8),
        ([2, 26, 26, 26], 38, 12),  # what the short ones leave is shared
        ([26] * 200, 128, 1),  # never less than a column
        ([3, 7], 128, 7),  # all that is left
    ],
)
def test_columns_of_a_slice(left, count, width):
    assert slice_width(np.array(left), count) == width
