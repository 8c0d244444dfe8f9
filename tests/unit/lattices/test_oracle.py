"""The best that a lattice holds."""

import numpy as np

from models.lattices.lattice import ArcColumns, build_lattice
from models.lattices.rescoring import oracle_path


def lattice_of(*arcs):
    """Arcs as (source, target, word)."""
    sources, targets, words = zip(*arcs, strict=True)
    count = len(arcs)
    return build_lattice(
        ArcColumns(sources, targets, words, np.zeros(count), np.zeros(count)),
        name=None,
        start=0,
        end=max(targets),
        times=np.full(max(targets) + 1, np.nan),
    )


CHOICES = lattice_of((0, 1, "a"), (0, 1, "x"), (1, 2, "b"), (1, 2, ""), (2, 3, "c"), (2, 3, "y"))


def test_a_path_that_is_right_has_no_errors():
    assert oracle_path(CHOICES, "x b y") == ("x b y", 0, 3)


def test_arcs_without_a_word_cost_nothing():
    assert oracle_path(CHOICES, "a y") == ("a y", 0, 2)


def test_substitutions_insertions_and_deletions_are_counted():
    assert oracle_path(CHOICES, "a q y").errors == 1
    assert oracle_path(CHOICES, "q").errors == 2
    assert oracle_path(CHOICES, "a b b c").errors == 1
    assert oracle_path(CHOICES, "").errors == 2


def test_words_that_differ_in_case_are_different():
    assert oracle_path(CHOICES, "A b c").errors == 1
