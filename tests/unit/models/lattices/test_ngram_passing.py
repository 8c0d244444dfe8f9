"""Compiled token passing with n-gram models: the token graph of the general search, in any slices."""

import itertools

import numpy as np
import pytest

from models.calls import run_to_completion
from models.lattices import ngram_passing
from models.lattices.graph import LabelTokenizer, PathWeights, build_graph
from models.lattices.ngram_passing import pass_ngram_tokens
from models.lattices.token_passing import LatticeSearch, PhrasePaths, TokenPassing
from models.phrases import NO_PHRASES
from tests.reference.lattices import random_lattice
from tests.support import families
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress
from training.tokenizer import TokenizerSettings, learn_tokenizer

WORDS = [*families.WORDS[:7], "unheard", "of"]


def both_graphs(model, tokenizer, lattices, weights, search):
    """Token graphs of the general and of the compiled search."""
    every = itertools.chain.from_iterable(one.words for one in lattices)
    words = {word: number for number, word in enumerate(dict.fromkeys(every))}
    spelling = LabelTokenizer(tokenizer).label_tokens(list(words))
    joined = build_graph(lattices, weights, words, spelling)
    paths = PhrasePaths(NO_PHRASES, list(words), tokenizer)
    general = run_to_completion(TokenPassing(model, joined, spelling, paths, search).run())
    return general, run_to_completion(pass_ngram_tokens(model, joined, spelling, search))


def some_lattices(rng, words):
    return [
        random_lattice(
            rng,
            words=words,
            num_nodes=int(rng.integers(2, 12)),
            num_arcs=int(rng.integers(0, 40)),
            name=str(n),
        )
        for n in range(int(rng.integers(1, 5)))
    ]


def some_weights(rng):
    am, old_lm = rng.random(2).tolist()
    lm = float(rng.choice([0, 1, 0.5, -0.3]))
    return PathWeights(am=am, old_lm=old_lm, lm=lm, words=-0.3, unk=-2.0)


def check_equal(general, compiled):
    pairs = zip((*general[:3], *general.edges), (*compiled[:3], *compiled.edges), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("edges_per_call", [1, 40, 1 << 15])
@pytest.mark.parametrize("beam", [None, 0.0, 1.0, 10.0])
@pytest.mark.parametrize("most", [1, 2, 64])
@pytest.mark.parametrize("quantised", [False, True])
def test_the_token_graph_is_that_of_the_general_search(monkeypatch, quantised, most, beam, edges_per_call):
    monkeypatch.setattr(ngram_passing, "EDGES_PER_CALL", edges_per_call)
    tokenizer = families.tokenizer()
    corpus, vocabulary = families.corpus(), tokenizer.vocabulary
    model = estimate(corpus, vocabulary, order=3, quantise=quantised, progress=Progress()).model
    rng = np.random.default_rng(most)
    search = LatticeSearch(max_tokens_per_node=most, beam=beam)
    for _ in range(10):
        lattices = some_lattices(rng, WORDS)
        weights = [some_weights(rng) for _ in lattices]
        check_equal(*both_graphs(model, tokenizer, lattices, weights, search))


def test_words_of_several_pieces_are_read_piece_by_piece():
    text = [" ".join(np.random.default_rng(n).choice(families.WORDS, 8)) for n in range(60)]
    settings = TokenizerSettings(kind="unigram", vocab_size=30, byte_fallback=False)
    pieces = learn_tokenizer(settings, text)
    corpus = EncodedCorpus.from_sentences([np.array(ids) for ids in pieces.encode_all(text)])
    model = estimate(corpus, pieces.vocabulary, order=3, progress=Progress()).model
    assert max(map(len, pieces.encode_all(WORDS))) > 1
    rng = np.random.default_rng(0)
    for _ in range(10):
        lattices = some_lattices(rng, WORDS)
        weights = [some_weights(rng) for _ in lattices]
        check_equal(*both_graphs(model, pieces, lattices, weights, LatticeSearch()))
