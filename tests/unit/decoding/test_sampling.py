"""Drawing tokens."""

import numpy as np

from models.decoding.ranking import top_tokens
from models.decoding.sampling import most_probable, sample


class Stuck:
    """A generator that always gives the same number."""

    def __init__(self, number):
        self.number = number

    def random(self):
        return self.number


def test_draws_follow_the_distribution():
    """χ² of 20 000 draws over six tokens stays below its 99.99 % quantile."""
    p = np.array([0.4, 0.25, 0.2, 0.1, 0.04, 0.01])
    count, generator = 20_000, np.random.default_rng(7)
    log_probs = np.tile(np.log(p).astype(np.float32) + 3, (count, 1))  # need not be normalised
    seen = np.bincount(sample(log_probs, [generator] * count), minlength=6)
    assert ((seen - count * p) ** 2 / (count * p)).sum() < 25.7


def test_a_token_without_probability_is_never_drawn():
    row = np.array([[-np.inf, 0.0, -np.inf, 0.0, -np.inf]], dtype=np.float32)
    for number in (0.0, 0.5, 1 - 2**-53):
        assert sample(row, [Stuck(number)])[0] in {1, 3}


def test_a_row_draws_the_same_whoever_is_beside_it():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 30)).astype(np.float32)
    together = sample(rows, [np.random.default_rng(seed) for seed in range(5)])
    alone = [sample(rows[i : i + 1], [np.random.default_rng(i)])[0] for i in range(5)]
    np.testing.assert_array_equal(together, alone)


def test_the_most_probable_of_equals_has_the_smallest_id():
    assert most_probable(np.array([[-2.0, -1.0, -1.0]], dtype=np.float32))[0] == 1


def test_top_tokens_are_sorted_and_equals_stand_by_id():
    row = np.array([-3.0, -1.0, -2.0, -1.0, -2.0], dtype=np.float32)
    assert top_tokens(row, 4).ids.tolist() == [1, 3, 2, 4]
    assert top_tokens(row, 5).log_probs.tolist() == [-1.0, -1.0, -2.0, -2.0, -3.0]
