"""The recipe's `[ngram]` table, and what training makes of it."""

from typing import get_args

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.tokenizers import WordTokenizer
from models.vocabulary import Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.data import EncodedTexts
from training.ngram.smoothing.choice import SmoothingName
from training.pipeline import train_ngram
from training.progress import Silent
from training.recipe import load_recipe

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
            "ngram.k=0.5",
            "ngram.buckets=12",
        ],
    ).ngram
    assert (settings.discounts, settings.prune, settings.prune_entropy) == ("held-out", (0, 0, 1), 1e-8)
    assert (settings.quantize_bits, settings.direction) == (8, "backward")
    assert (settings.k, settings.buckets) == (0.5, 12)


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["ngram.smoothing=kneser"], r"ngram\.smoothing: .*'witten-bell'.* given 'kneser'"),
        (["ngram.k=0"], r"ngram\.k: .* given 0"),
        (["ngram.k=inf"], r"ngram\.k: .* given inf"),
        (["ngram.buckets=0"], r"ngram\.buckets: .* given 0"),
        (["ngram.buckets=32"], r"ngram\.buckets: .* given 32"),
        (["ngram.prune=[1, 1]"], r"ngram\.prune: .*first threshold must be 0"),
        (["ngram.prune=[0, 2, 1]"], r"ngram\.prune: .*must not be below the one before, given \[0, 2, 1\]"),
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
