"""What a lattice has to be, and how one is made of arcs in any order."""

import dataclasses

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.lattices import lattice as limits
from models.lattices.lattice import ArcColumns, Lattice, build_lattice
from tests.lattices import all_paths, text_of


def made(sources, targets, words=None, *, start=0, end=None):
    """A lattice of arcs whose scores do not matter."""
    count, end = len(sources), max(targets) if end is None else end
    arcs = ArcColumns(
        sources, targets, words or [f"w{i}" for i in range(count)], np.zeros(count), np.zeros(count)
    )
    num_nodes = max(*sources, *targets) + 1
    return build_lattice(arcs, name=None, start=start, end=end, times=np.arange(float(num_nodes)))


def test_nodes_in_the_wrong_order_are_put_in_the_right_one():
    lattice = made([3, 0, 3], [0, 1, 1], start=3, end=1)
    assert lattice.sources.tolist() == [0, 0, 1]
    assert lattice.targets.tolist() == [1, 2, 2]
    assert lattice.times.tolist() == [3.0, 0.0, 1.0]
    assert [lattice.words[label] for label in lattice.labels] == ["w0", "w2", "w1"]


def test_an_order_that_will_do_is_kept():
    lattice = made([0, 2, 0, 1], [2, 3, 1, 3])
    assert lattice.times.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert {text_of(lattice, path) for path in all_paths(lattice)} == {"w0 w1", "w2 w3"}


def test_nodes_on_no_path_are_dropped():
    lattice = made([0, 0, 2, 4, 1], [1, 2, 3, 1, 5], end=5)  # 2 → 3 is a dead end, 4 cannot be reached
    assert lattice.times.tolist() == [0.0, 1.0, 5.0]
    assert lattice.words == ("", "w0", "w4")


@pytest.mark.parametrize(("sources", "targets"), [([0, 1, 2, 1], [1, 2, 1, 3]), ([0, 1, 1], [1, 1, 3])])
def test_a_cycle_is_refused_and_a_node_on_it_named(sources, targets):
    with pytest.raises(InvalidInputError, match=r"node (1|2) is on a cycle"):
        made(sources, targets)


def test_an_end_that_cannot_be_reached_is_refused():
    with pytest.raises(InvalidInputError, match="no path leads from node 0 to node 3"):
        made([0, 2], [1, 3])


def test_sizes_are_limited(monkeypatch):
    monkeypatch.setattr(limits, "MAX_ARCS", 2)
    with pytest.raises(InvalidInputError, match="has 3 arcs; at most 2"):
        made([0, 0, 0], [1, 1, 1])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sources": np.array([1, 0])}, "cannot be reached|leads back"),
        ({"targets": np.array([2, 2])}, "cannot be reached"),
        ({"labels": np.array([0, 9])}, "labels must be from 0 to 2"),
        ({"am": np.array([0.0, np.nan])}, "a score is nan"),
        ({"old_lm": np.array([-1e308, 0.0])}, r"a score is -1e\+308; it must be from -1e\+100"),
        ({"am": np.zeros(3)}, "as many"),
        ({"words": ("", "a", "a")}, "distinct"),
        ({"times": np.zeros(4)}, "cannot be reached|leads nowhere"),
    ],
)
def test_arrays_that_are_no_lattice_are_refused(change, problem):
    lattice = Lattice(
        "utt",
        ("", "a", "b"),
        np.array([0, 1]),
        np.array([1, 2]),
        np.array([1, 2]),
        np.zeros(2),
        np.zeros(2),
        np.zeros(3),
    )
    with pytest.raises(InvalidInputError, match=problem):
        dataclasses.replace(lattice, **change)
