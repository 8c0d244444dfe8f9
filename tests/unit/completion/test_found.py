"""What becomes of the mass of what was typed."""

import pytest

from models.completion.search import MassTable


def findings(*phrases):
    found = MassTable(2)
    for text, num_words, mass in phrases:
        found.add(text.encode(), num_words, mass)
    return found


def test_masses_of_a_word_add_up():
    assert findings(("cat", 1, 0.25), ("cat", 1, 0.5)).words == {b"cat": 0.75}


def test_giving_up_leaves_the_live_mass_as_it_is():
    found = MassTable(1)
    found.open = 0.5
    found.discard(0.2)
    assert (found.live, found.open, found.cut) == (0.5, 0.3, 0.2)


def test_what_is_told_last_decides_what_may_change_it():
    """Of words and of phrases; with too few of either, anything may."""
    found = findings(("a", 1, 0.5), ("b", 1, 0.1), ("a c", 2, 0.3), ("a d", 2, 0.2))
    assert found.pruning_threshold(1) == 0.3
    assert found.pruning_threshold(2) == 0.1
    assert found.pruning_threshold(3) == 0


def test_the_best_of_each_length_are_told():
    found = findings(("a", 1, 0.5), ("b", 1, 0.1), ("a c", 2, 0.3), ("a d", 2, 0.2))
    assert [one.text for one in found.result(1, {}).completions] == ["a", "a c"]


def test_beginnings_make_up_for_words():
    found = findings(("cat", 1, 0.1))
    found.completed, found.open = 0.1, 0.3
    told = found.result(2, {b"ho": 0.2, b"hu": 0.1})
    assert told.completions == (("ho", 0.2, 1, False), ("cat", 0.1, 1, True))
    assert told.unexplored_mass == pytest.approx(0.75)
    assert [one.text for one in found.result(1, {b"ho": 0.2}).completions] == ["cat"]


def test_nothing_live_is_nothing_unexplored():
    assert MassTable(1).result(5, {}) == ((), 0.0, 0.0)
