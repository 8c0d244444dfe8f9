"""When candidates are walked as a tree; what it answers is in tests/property/test_reranking.py."""

import numpy as np
import pytest

from service.engine.job import run_to_completion
from service.use_cases.sequence_scoring import build_tree, tree_is_cheaper


@pytest.mark.parametrize(
    ("count", "shared", "own", "spared"),
    [(200, 18, 2, True), (200, 12, 8, True), (200, 5, 15, False), (10, 18, 2, False), (1, 20, 0, False)],
)
def test_a_tree_is_walked_where_beginnings_and_levels_cost_less_than_tokens(count, shared, own, spared):
    tails = np.arange(count * own).reshape(count, own)
    tokens = np.concatenate([np.zeros((count, shared), int), tails + 1], axis=1)
    lengths = np.full(count, shared + own)
    levels = run_to_completion(build_tree(np.zeros(count, int), tokens, lengths))
    assert tree_is_cheaper(levels, 1, lengths) is spared
