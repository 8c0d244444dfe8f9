"""The recipe's `[ngram]` table, and what training makes of it."""

from typing import get_args

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.tokenizers import WordTokenizer
from models.vocabulary import Vocabulary
from training.corpus import EncodedCorpus
from training.ngram.smoothing.choice import SmoothingName
from training.progress import Silent
from training.recipe import load_recipe
from training.single_model import train_ngram
from training.texts import EncodedTexts

TOKENIZER = WordTokenizer(Vocabulary(["i", "love", "cats", "dogs", "chase", "mice"]))


def trained(*assignments):
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [3, 4, 6], [5, 7, 8]])
    recipe = load_recipe("ngram", ["ngram.order=2", *assignments])
    return train_ngram("test", recipe, TOKENIZER, EncodedTexts(corpus, corpus, corpus), progress=Silent())


def test_by_default_nothing_is_pruned_and_the_smoothing_is_modified_kneser_ney():
    settings = load_recipe("ngram").ngram
    assert (settings.smoothing, settings.discounts, settings.direction) == (
        "modified-kneser-ney",
        "counts",
        "forward",
    )
    assert (settings.prune, settings.prune_entropy, settings.quantize_bits) == ((), 0.0, None)


def test_all_keys_can_be_set():
    settings = load_recipe(
        "ngram",
        [
            "ngram.discounts=held-out",
            "ngram.prune=[0, 0, 1]",
            "ngram.prune_entropy=1e-8",
            "ngram.quantize_bits=8",
            "ngram.direction=backward",
        ],
    ).ngram
    assert (settings.discounts, settings.prune, settings.prune_entropy) == ("held-out", (0, 0, 1), 1e-8)
    assert (settings.quantize_bits, settings.direction) == (8, "backward")


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["ngram.smoothing=kneser"], r"ngram\.smoothing: .*'witten-bell'.* given 'kneser'"),
        (["ngram.k=0"], r"ngram\.k: .* given 0"),
        (["ngram.k=inf"], r"ngram\.k: .* given inf"),
        (["ngram.buckets=0"], r"ngram\.buckets: .* given 0"),
        (["ngram.buckets=32"], r"ngram\.buckets: .* given 32"),
        (["ngram.prune=[1, 1]"], r"ngram\.prune: .*first threshold must be 0"),
        (["ngram.prune=[0, 2, 1]"], r"ngram\.prune: .*is \[0, 2, 1\], .*must not be below the one before$"),
        (["ngram.prune=2"], r"ngram\.prune: must be a list such as \[0, 0, 1\], given 2"),
        (["ngram.prune=[0, x]"], r"ngram\.prune: must be a list such as \[0, 0, 1\], given '\[0, x\]'"),
        (["ngram.k=0.5"], r"ngram\.k acts with ngram\.smoothing=add-k only, given 0\.5 with modified-kn"),
        (["ngram.buckets=2", "ngram.smoothing=add-k"], r"ngram\.buckets acts with .*jelinek-mercer only"),
        (["ngram.order=2", "ngram.prune=[0, 0, 1]"], r"ngram\.prune: .*of 3 orders, but ngram\.order is 2"),
        (["ngram.prune_entropy=-1"], r"ngram\.prune_entropy: .* given -1"),
        (["ngram.quantize_bits=4"], r"ngram\.quantize_bits: .* given 4"),
        (["ngram.direction=sideways"], r"ngram\.direction: .* given 'sideways'"),
        (
            ["ngram.smoothing=witten-bell", "ngram.discounts=held-out"],
            r"ngram\.discounts: .*witten-bell has no discounts; absolute, kneser-ney, modified-kneser-ney have",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(assignments, said):
    with pytest.raises(InvalidInputError, match=said):
        load_recipe("ngram", assignments)


@pytest.mark.parametrize("name", get_args(SmoothingName))
def test_every_smoothing_can_be_trained_by_its_name(name):
    result = trained(f"ngram.smoothing={name}")
    assert result.facts["smoothing"] == name
    assert {"ngrams", "discounts", "fallback_orders"} <= result.facts.keys()
    row = np.exp(result.model.next_log_probs(result.model.initial_state(1))[0])
    assert row.sum() == pytest.approx(1)


def test_the_settings_of_a_smoothing_reach_it():
    assert trained("ngram.smoothing=add-k", "ngram.k=0.25").facts["k"] == 0.25
    weights = trained("ngram.smoothing=jelinek-mercer", "ngram.buckets=3").facts["lambdas"]
    assert [len(row) for row in weights] == [3, 3]
    assert trained("ngram.discounts=held-out").facts["discounts_from"] == "held-out"
    assert trained("ngram.prune=[0, 1]").facts["ngrams"] == [9, 2]  # only «<s> i» and «i love» twice


def test_a_backward_model_is_a_forward_one_of_reversed_sentences():
    """«mice» is the last of three words in one sentence of three; «cats» and «dogs» are in the others."""
    result = trained("ngram.direction=backward", "ngram.smoothing=mle")
    row = np.exp(result.model.next_log_probs(result.model.initial_state(1))[0])
    assert row[TOKENIZER.vocabulary.id_of("mice")] == pytest.approx(1 / 3)
    assert row[TOKENIZER.vocabulary.id_of("i")] == 0
    assert result.figures["test"]["perplexity"] is not None  # its text is reversed, too


def test_a_model_is_quantised_where_the_recipe_says_so():
    result = trained("ngram.quantize_bits=8")
    assert result.model.automaton.log10_probs.dtype == np.uint8
    assert not result.model.normalised
    assert result.facts["normalisation"]["largest_deviation"] < 0.1
    assert trained().model.automaton.log10_probs.dtype == np.float32


def test_a_model_is_pruned_by_entropy_where_the_recipe_says_so():
    result = trained("ngram.prune_entropy=0.05")
    before, after = trained().facts["ngrams"], result.facts["ngrams"]
    assert result.facts["ngrams_before_pruning"] == before
    assert after[0] == before[0]
    assert 0 <= after[1] < before[1]
    assert result.model.automaton.num_arcs < trained().model.automaton.num_arcs


def test_keys_that_cannot_act_on_published_models_are_refused():
    models = 'mixture.models=["a", "b"]'
    for kind, key in (("dynamic", "prune_entropy=1e-8"), ("dynamic", "order=3"), ("static", "order=3")):
        with pytest.raises(InvalidInputError, match=rf"ngram\.{key.split('=')[0]} cannot act on a {kind}"):
            load_recipe("ngram-mixture", [models, f"mixture.kind={kind}", f"ngram.{key}"])
    assert load_recipe("ngram-mixture", [models, "ngram.prune_entropy=1e-8"]).ngram.prune_entropy == 1e-8
