"""Lattices rescored with n-gram models: the best strings, and what they are worth, are those of KenLM's scores."""

import math

import kenlm
import numpy as np
import pytest

from models.lattices.graph import LabelTokenizer, PathWeights
from models.lattices.rescoring import nbest_candidates, rescore
from models.lattices.token_passing import LatticeSearchSettings
from models.ngram.arpa_reader import read_arpa
from models.ngram.build import build_automaton
from models.ngram.model import NGramModel
from models.tokenizers import WordTokenizer
from tests.arpa_files import random_arpa
from tests.lattices import all_paths, random_lattice, text_of

WEIGHTS = PathWeights(am=0.1, lm=1.0, words=0.2)


def kenlm_totals(oracle, lattice):
    """The best total and the log-probability of each distinct string."""
    answers = {}
    for path in map(list, all_paths(lattice)):
        text = text_of(lattice, path)
        log_prob = oracle.score(text) * math.log(10)
        total = 0.1 * lattice.am[path].sum() + log_prob + 0.2 * len(text.split())
        answers[text] = max(answers.get(text, (-math.inf, 0.0)), (total, log_prob))
    return answers


@pytest.mark.parametrize("order", [2, 3, 5])
def test_the_n_best_lists_are_kenlms(order, tmp_path):
    rng, path = np.random.default_rng(order), tmp_path / "random.arpa"
    text, words = random_arpa(rng, order=order)
    path.write_text(text, encoding="utf-8")
    arpa, oracle = read_arpa(path), kenlm.Model(str(path))
    model = NGramModel(build_automaton(arpa.orders), arpa.vocabulary, normalised=False)
    lattices = [random_lattice(rng, words=[*words[:4], "new"], num_nodes=8, num_arcs=12) for _ in range(20)]
    search = LatticeSearchSettings(max_tokens_per_node=100_000)
    rescored = rescore(
        lattices,
        model,
        LabelTokenizer(WordTokenizer(arpa.vocabulary)),
        weights=[WEIGHTS] * len(lattices),
        search=search,
    )
    for one in rescored:
        expected = kenlm_totals(oracle, one.lattice)
        found = nbest_candidates(one, 10).candidates
        best = sorted((total for total, _ in expected.values()), reverse=True)[:10]
        assert [expected[candidate.text][0] for candidate in found] == pytest.approx(best, abs=1e-4)
        for candidate in found:
            assert candidate.features["lm"] == pytest.approx(expected[candidate.text][1], rel=1e-5)
