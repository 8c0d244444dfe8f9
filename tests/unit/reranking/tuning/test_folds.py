"""Which lists are held out together."""

import numpy as np

from models.reranking.tuning.fitting import assign_folds
from tests.tuning_problems import candidate_list


def lists(count):
    return [candidate_list("x", reference=f"r{i}") for i in range(count)]


def test_folds_have_about_as_many_lists_each():
    assert sorted(np.bincount(assign_folds(lists(11), folds=3, seed=0)).tolist()) == [3, 4, 4]


def test_lists_of_the_same_reference_are_in_one_fold():
    some = [candidate_list("x", reference=f"r{i // 4}") for i in range(24)]
    folds = assign_folds(some, folds=2, seed=0).reshape(6, 4)
    assert (folds == folds[:, :1]).all()


def test_equal_seeds_give_equal_folds_and_others_do_not():
    one, same, other = (assign_folds(lists(40), folds=2, seed=seed).tolist() for seed in (1, 1, 2))
    assert one == same != other
