"""Sequences that are not looked into yet: of very many, the most probable are kept."""

import numpy as np
import pytest

from models.completion import search as module
from models.completion.search import Frontier, Node


@pytest.fixture
def frontier(monkeypatch):
    """With children of two nodes, one of them past a word."""
    monkeypatch.setattr(module, "_MIN_PRUNED_CHILDREN", 4)
    made = Frontier()
    made.add(Node(None, 0, 1.0), 0, np.arange(4), np.array([0.4, 0.1, 0.3, 0.2]))
    made.add(Node(None, 1, 1.0), 1, np.arange(3), np.array([0.35, 0.05, 0.25]))
    return made


def test_only_the_most_probable_children_are_kept(frontier):
    assert frontier.prune(3) == pytest.approx(0.3)  # of those in which no word has ended
    assert frontier.mass == pytest.approx(0.7)
    assert [frontier.pop().mass for _ in range(3)] == [0.4, 0.35, 0.3]
    assert not frontier


def test_a_few_children_are_all_kept(frontier):
    frontier.pop()
    assert frontier.prune(3) == 0
    assert len([frontier.pop() for _ in range(6)]) == 6
    assert not frontier
