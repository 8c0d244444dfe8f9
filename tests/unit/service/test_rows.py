"""Rows of a shared state: nothing is copied until it must be, and rows are those asked for."""

import numpy as np

from service.engine.batching import StateView, concatenate_states, gather_states, materialize, split_rows


class Numbers:
    """A state that is a number a row, and counts how often it is copied."""

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
    assert materialize(concatenate_states([rows, Numbers([7])])).numbers == [2, 2, 0, 7]
