"""Lattice rescoring, pruning and batch invariance; the oracle error."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch

from models.errors import InputError
from models.lattices.graph import LabelTokenizer, PathWeights
from models.lattices.lattice import Arc, Scales, build_lattice
from models.lattices.rescoring import first_pass_text, nbest_candidates, nbest_paths, oracle_errors, rescore
from models.lattices.token_passing import LatticeSearch
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.reranking.formats.writer import write_lists
from models.tokenizers import WordTokenizer
from tests.reference.lattices import all_paths, brute_force, random_lattice, text_of
from tests.support import families
from tests.support.fake_models import FakeModel, fake_vocabulary
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress
from training.tokenizer import TokenizerSettings, learn_tokenizer

TOKENIZER = families.tokenizer()
SPELLER = LabelTokenizer(TOKENIZER)
WEIGHTS = PathWeights(am=0.2, old_lm=0.1, lm=1.0, words=-0.3, unk=-2.0)
WORDS = [*families.WORDS[:7], "unheard", "of"]


def lattices(count, *, num_nodes=9, num_arcs=16):
    rng = np.random.default_rng(5)
    return [
        random_lattice(rng, words=WORDS, num_nodes=num_nodes, num_arcs=num_arcs, name=f"u{i}")
        for i in range(count)
    ]


def rescored(some, name="ngram", weights=WEIGHTS, **search):
    return rescore(
        some,
        families.model(name),
        SPELLER,
        weights=[weights] * len(some),
        search=LatticeSearch(**search),
    )


def subword_model(name, tokenizer, text):
    """Model over a SentencePiece vocabulary."""
    if name == "lstm":
        torch.manual_seed(1)
        config = NetworkConfig(cell="lstm", layers=1, embedding_size=8, hidden_size=11)
        return NeuralModel(Network(config, len(tokenizer.vocabulary)), tokenizer.vocabulary)
    rows = [np.array(ids) for ids in tokenizer.encode_all(text)]
    corpus = EncodedCorpus.from_sentences(rows, num_words=1, num_bytes=1)
    return estimate(corpus, tokenizer.vocabulary, order=3, progress=Progress()).model


def best_total(one):
    return nbest_paths(one, 1)[0].total


def test_no_lattices_are_no_work():
    assert rescored([]) == []


def test_rescored_lattice_does_not_depend_on_the_batch():
    some = lattices(7)
    for alone, together in zip(
        [rescored([one], beam=3.0)[0] for one in some], rescored(some, beam=3.0), strict=True
    ):
        assert np.array_equal(alone.tokens.nodes, together.tokens.nodes)
        assert np.array_equal(alone.tokens.forward, together.tokens.forward)
        assert all(map(np.array_equal, alone.tokens.edges, together.tokens.edges))


def test_each_lattice_has_weights_of_its_own():
    one = lattices(1)[0]
    other = PathWeights(am=0.05, lm=3.0)
    together = rescore(
        [one, one], families.model("ngram"), SPELLER, weights=[WEIGHTS, other], search=LatticeSearch()
    )
    assert best_total(together[0]) == best_total(rescored([one])[0])
    assert best_total(together[1]) == best_total(rescored([one], weights=other)[0])


@pytest.mark.parametrize("name", ["ngram", "lstm"])
@pytest.mark.parametrize(
    "pruned", [{"beam": 0.5}, {"max_tokens_per_node": 1}, {"beam": 4.0, "max_tokens_per_node": 2}]
)
def test_pruning_saves_work_and_never_finds_what_is_better_than_the_best(name, pruned):
    some = lattices(6)
    thorough = rescored(some, name, max_tokens_per_node=10_000, recombination_order=None)
    for exact, quick in zip(thorough, rescored(some, name, recombination_order=None, **pruned), strict=True):
        assert quick.num_tokens < exact.num_tokens
        assert best_total(quick) <= best_total(exact) + 1e-4


def test_a_beam_of_nothing_still_comes_to_the_end():
    for one in rescored(lattices(6), beam=0.0):
        assert len(nbest_paths(one, 3)) >= 1


def test_merging_by_few_words_makes_fewer_tokens():
    some = lattices(4)
    sizes = [
        sum(
            one.num_tokens
            for one in rescored(some, "lstm", recombination_order=order, max_tokens_per_node=9999)
        )
        for order in (1, 2, None)
    ]
    assert sizes[0] < sizes[1] < sizes[2]


def test_a_path_with_a_word_that_cannot_be_loses_to_any_other():
    vocabulary = fake_vocabulary()
    model, tokenizer = FakeModel(vocabulary), WordTokenizer(vocabulary)
    model.table[:, tokenizer.encode("dog")[0]] = -np.inf
    arcs = [Arc(0, 1, "dog", -1.0, 0.0), Arc(0, 1, "cat", -90000.0, 0.0), Arc(1, 2, "sat", 0.0, 0.0)]
    lattice = build_lattice(arcs, name=None, start=0, end=2, times=np.zeros(3))
    [one] = rescore(
        [lattice], model, LabelTokenizer(tokenizer), weights=[PathWeights()], search=LatticeSearch()
    )
    first, second = nbest_candidates(one, 2).candidates
    assert [first.text, second.text] == ["cat sat", "dog sat"]
    assert second.features["lm"] == -np.inf
    written = io.BytesIO()
    write_lists([nbest_candidates(one, 2)], written, "moses")
    assert b"lm= -9999.0" in written.getvalue()
    assert np.isfinite(one.as_lattice().old_lm).all()


@pytest.mark.parametrize("weight", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("beam", [None, 1e9])
@pytest.mark.parametrize("words", [("dog", "cat"), ("dog", "dog")])
def test_impossible_words_count_with_any_weight_except_zero(weight, beam, words):
    vocabulary = fake_vocabulary()
    model, tokenizer = FakeModel(vocabulary), WordTokenizer(vocabulary)
    model.table[:, tokenizer.encode("dog")[0]] = -np.inf
    arcs = [Arc(0, 1, words[0], -1.0, 0.0), Arc(0, 1, words[1], -2.0, 0.0), Arc(1, 2, "sat", 0.0, 0.0)]
    lattice = build_lattice(arcs, name=None, start=0, end=2, times=np.zeros(3))
    search, weights = LatticeSearch(beam=beam), [PathWeights(lm=weight)]
    [one] = rescore([lattice], model, LabelTokenizer(tokenizer), weights=weights, search=search)
    best = nbest_paths(one, 2)[0]
    assert best.text == ("cat sat" if weight and "cat" in words else "dog sat")
    assert np.isfinite(best.total) == (not weight or "cat" in words)
    assert not np.isnan(one.tokens.forward).any()


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("name", ["ngram", "lstm"])
def test_words_of_several_tokens_are_scored_as_in_whole_sentences(kind, name):
    text = ["the cat sat on the mat", "a dog ran to the house"] * 20
    tokenizer = learn_tokenizer(TokenizerSettings(kind=kind), text, progress=Progress())
    model = subword_model(name, tokenizer, text)
    lattice = random_lattice(
        np.random.default_rng(2), words=["the", "catamaran", "house", "x", "sat", "café"]
    )
    search = LatticeSearch(max_tokens_per_node=10_000, recombination_order=None)
    [one] = rescore([lattice], model, LabelTokenizer(tokenizer), weights=[WEIGHTS], search=search)
    expected = brute_force(lattice, model, tokenizer, WEIGHTS)
    for path in nbest_paths(one, 20):
        assert path.total == pytest.approx(expected[path.text][0], abs=1e-5)
    assert best_total(one) == pytest.approx(max(total for total, _ in expected.values()), abs=1e-5)


def test_the_old_models_score_is_replaced_unless_it_has_a_weight():
    one = lattices(1)[0]
    replaced = rescored([one], weights=PathWeights.of({}, one.scales))[0]
    best = nbest_candidates(replaced, 1).candidates[0].features
    scales = one.scales
    assert best_total(replaced) == pytest.approx(
        scales.am * best["am"] + scales.lm * best["lm"] + scales.words * best["words"]
    )


def test_weights_that_name_nothing_or_are_too_large_are_refused():
    with pytest.raises(InputError, match=r"weights.lmscale is not a feature of a path"):
        PathWeights.of({"lmscale": 1.0}, Scales())
    with pytest.raises(InputError, match=r"weights.am is 10000000.0; it must be from -1e\+06"):
        PathWeights(am=1e7)


@pytest.mark.parametrize("name", ["max_tokens_per_node", "recombination_order", "beam"])
def test_a_search_that_cannot_be_is_refused(name):
    with pytest.raises(InputError, match=f"{name} is -1"):
        LatticeSearch(**{name: -1})


def test_written_as_a_lattice_the_paths_keep_their_totals():
    for one in rescored(lattices(5)):
        lattice = one.as_lattice()
        scales = lattice.scales
        totals = {path.text: path.total for path in nbest_paths(one, 10**6)}
        # a model weight of 0 leaves the lattice's own scores
        silent = PathWeights(am=scales.am, old_lm=scales.lm, lm=0.0, words=scales.words)
        again = brute_force(lattice, families.model("ngram"), TOKENIZER, silent)
        assert {text: total for text, (total, _) in again.items()} == pytest.approx(totals)


def canonical(graph):
    """Arrays of a graph with the edges of each token sorted."""
    tokens = np.repeat(np.arange(len(graph.nodes)), np.diff(graph.offsets))
    order = np.lexsort((graph.edges.arcs, graph.edges.parents, tokens))
    return [graph.nodes, graph.forward, graph.offsets, tokens, *(column[order] for column in graph.edges)]


def lattice_of(*arcs):
    """Lattice of arcs given as (source, target, word)."""
    end = max(target for _, target, _ in arcs)
    rows = [Arc(*arc, 0.0, 0.0) for arc in arcs]
    return build_lattice(rows, name=None, start=0, end=end, times=np.full(end + 1, np.nan))


CHOICES = lattice_of((0, 1, "a"), (0, 1, "x"), (1, 2, "b"), (1, 2, ""), (2, 3, "c"), (2, 3, "y"))


@pytest.mark.parametrize("seed", range(12))
def test_the_first_passes_string_has_the_best_total_of_the_files_scores(seed):
    lattice = random_lattice(np.random.default_rng(seed), words=["a", "b", "c"])
    lattice = replace(lattice, scales=Scales(0.5 + seed % 3, 2.0, -0.25 * seed))
    scales, totals = lattice.scales, {}
    for path in all_paths(lattice):
        arcs, text = list(path), text_of(lattice, path)
        total = scales.am * lattice.am[arcs].sum() + scales.lm * lattice.old_lm[arcs].sum()
        totals[text] = max(totals.get(text, -np.inf), total + scales.words * len(text.split()))
    assert totals[first_pass_text(lattice)] == pytest.approx(max(totals.values()))


def test_a_path_that_is_right_has_no_errors():
    assert oracle_errors(CHOICES, ["x", "b", "y"]) == 0


def test_arcs_without_a_word_cost_nothing():
    assert oracle_errors(CHOICES, ["a", "y"]) == 0


def test_substitutions_insertions_and_deletions_are_counted():
    assert oracle_errors(CHOICES, ["a", "q", "y"]) == 1
    assert oracle_errors(CHOICES, ["q"]) == 2
    assert oracle_errors(CHOICES, ["a", "b", "b", "c"]) == 1
    assert oracle_errors(CHOICES, []) == 2


def test_words_that_differ_in_case_are_different():
    assert oracle_errors(CHOICES, ["A", "b", "c"]) == 1
