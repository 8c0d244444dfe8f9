"""Posteriors of edges against the sums over all paths, and words beside the best ones."""

import numpy as np
import pytest

from models.calls import run_to_completion
from models.lattices.graph import LabelTokenizer, PathWeights
from models.lattices.lattice import lattice_of_arcs, lattice_of_confusions
from models.lattices.posteriors import EdgePosteriors
from models.lattices.rescoring import nbest_paths, rescore
from models.lattices.token_passing import LatticeSearch
from tests.reference.lattices import random_lattice
from tests.support import families

SPELLER = LabelTokenizer(families.tokenizer())
A, B, C = families.WORDS[:3]


def rescored(lattice, name="ngram"):
    weights = PathWeights(am=0.2, old_lm=0.1, lm=1.0, words=-0.3, unk=-2.0)
    search = LatticeSearch(max_tokens_per_node=1000)
    return rescore([lattice], families.model(name), SPELLER, weights=[weights], search=search)[0]


def all_token_paths(graph):
    """Edges and total of every path through a token graph."""
    paths = {0: [((), 0.0)]}
    for token in range(1, len(graph.nodes)):
        paths[token] = [
            ((*path, edge), total + graph.edges.scores[edge])
            for edge in range(graph.offsets[token], graph.offsets[token + 1])
            for path, total in paths[graph.edges.parents[edge]]
        ]
    return paths[len(graph.nodes) - 1]


@pytest.mark.parametrize("scale", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("name", ["ngram", "lstm"])
def test_posteriors_are_shares_of_all_paths(name, scale):
    rng = np.random.default_rng(1)
    for _ in range(20):
        one = rescored(random_lattice(rng, words=families.WORDS[:9], num_nodes=6, num_arcs=6), name)
        found, paths = EdgePosteriors.of(one, scale=scale), all_token_paths(one.tokens)
        totals = scale * np.array([total for _, total in paths])
        shares = np.exp(totals - np.logaddexp.reduce(totals))
        want = np.zeros(len(one.tokens.edges.parents))
        for (path, _), share in zip(paths, shares, strict=True):
            want[list(path)] += share
        assert found.edges == pytest.approx(want, abs=1e-9)
        best = nbest_paths(one, 1)[0]
        assert found.of_path(best) == pytest.approx(np.exp(scale * best.total - np.logaddexp.reduce(totals)))


def test_words_at_one_instant_sum_to_one():
    rng = np.random.default_rng(2)
    for _ in range(30):
        one = rescored(random_lattice(rng, words=families.WORDS[:9], num_nodes=7, num_arcs=9))
        found = EdgePosteriors.of(one, scale=1.0)
        for path in nbest_paths(one, 3):
            words = run_to_completion(found.words(path, most=99))
            assert [word.text for word in words] == path.text.split()
            for word in words:
                assert word.posterior + sum(mass for _, mass in word.others) == pytest.approx(1)
                assert sorted(word.others, key=lambda other: -other[1]) == word.others


def test_alternatives_of_a_confusion_network_are_those_of_its_places():
    places = [[(A, -0.1), (B, -3.0)], [(B, -0.5), ("", -1.0)], [(C, 0.0)]]
    one = rescored(lattice_of_confusions(places, most=99))
    words = run_to_completion(EdgePosteriors.of(one, scale=1.0).words(nbest_paths(one, 1)[0], most=5))
    beside = {word.text: {word.text, *(text for text, _ in word.others)} for word in words}
    assert beside[C] == {C}
    assert {frozenset(texts) for texts in beside.values()} <= {
        frozenset({A, B}),
        frozenset({B, ""}),
        frozenset({C}),
    }
    assert all(word.start is None is word.end for word in words)


@pytest.mark.parametrize("times", [[0.0, 0.5, 1.5], [0.0, 0.5, 0.5], [0.5, 0.4, 0.9], None])
def test_times_are_told_as_given(times):
    one = rescored(lattice_of_arcs([(0, 1, A, 0, 0), (1, 2, B, 0, 0)], times=times, most=9))
    words = run_to_completion(EdgePosteriors.of(one, scale=1.0).words(nbest_paths(one, 1)[0], most=5))
    known = [None] * 3 if times is None else times
    assert [(word.start, word.end) for word in words] == [(known[0], known[1]), (known[1], known[2])]
    assert [word.posterior for word in words] == pytest.approx([1, 1])


def test_equal_totals_do_not_multiply_the_search():
    """60 places of 20 unknown words: 20^60 texts of one total."""
    places = [[(f"x{place}y{choice}", -1.0) for choice in range(20)] for place in range(60)]
    paths = nbest_paths(rescored(lattice_of_confusions(places, most=9999)), 100)
    assert len({path.text for path in paths}) == 100
    assert len({round(path.total, 6) for path in paths}) == 1
