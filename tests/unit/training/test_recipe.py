"""Recipes: defaults, overrides, the `[ngram]` table, every neural family from text to checkpoint."""

from typing import get_args

import numpy as np
import pytest

from models.checkpoint.load import CheckpointDescription, load_checkpoint, write_checkpoint
from models.errors import InputError
from models.language_model import Vocabulary, pad_sequences, score_sequences
from models.tokenizers import WordTokenizer
from tests.support import families
from training.corpus import EncodedCorpus
from training.mixture import part_recipe
from training.ngram.estimate import SmoothingName
from training.progress import SILENT
from training.recipe import PartSettings, load_recipe, recipe_names
from training.single_model import TrainingInputs, train_single
from training.texts import EncodedTexts


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_comes_with_the_package_is_valid(name):
    base = ["train.from=novels@3"] if name == "finetune" else []
    assert load_recipe(name, base).family in {"ngram", "neural", "mixture"}


def test_keys_can_be_set_with_toml_values_and_plain_words():
    recipe = load_recipe(
        "ngram", ["ngram.order=3", "tokenizer.lowercase=true", "tokenizer.kind=char", "seed=7"]
    )
    assert (recipe.ngram.order, recipe.tokenizer.lowercase, recipe.tokenizer.kind, recipe.seed) == (
        3,
        True,
        "char",
        7,
    )


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("ngram.order=0", r"recipe ngram: ngram\.order: must be at least 1, given 0$"),
        ("ngram.order=x", r"ngram\.order: must be a whole number, given 'x'$"),
        ("tokenizer=x", r"tokenizer: must be a table of keys, given 'x'$"),
        ("famly=x", r"famly: unknown key; a recipe has family, seed, "),
        ("ngram.ordr=3", r"ngram\.ordr: unknown key; \[ngram\] has order, smoothing, k, "),
        ("ngram.smoothing=none", r"ngram\.smoothing: .* given 'none'"),
        ("tokenizer.vocab_size=2", r"tokenizer\.vocab_size: .* given 2"),
        ("neural.hidden_size=-5", r"neural\.hidden_size: .* given -5"),
        ("train.learning_rate=nan", r"train\.learning_rate"),
        (
            "tokenizer.normalise=nfd",
            r"tokenizer\.normalise: .*'none', 'nfc', 'nfkc' or 'casefold', given 'nfd'",
        ),
        ("tokenizer.pattern=[", r"tokenizer\.pattern: .*not a regular expression"),
        ("order", "--set takes key=value, given 'order'"),
        ("=3", "--set takes key=value"),
    ],
)
def test_a_wrong_key_or_value_is_named(assignment, said):
    with pytest.raises(InputError, match=said):
        load_recipe("ngram", [assignment])


def test_lower_casing_twice_is_refused():
    with pytest.raises(
        InputError, match=r"tokenizer\.lowercase has no effect with tokenizer\.normalise=casefold"
    ):
        load_recipe("ngram", ["tokenizer.normalise=casefold", "tokenizer.lowercase=true"])
    assert load_recipe("ngram", ["tokenizer.normalise=nfkc", "tokenizer.lowercase=true"]).tokenizer.lowercase


def test_an_unknown_recipe_lists_the_known_ones():
    with pytest.raises(InputError, match=r"use one of .*ngram"):
        load_recipe("nosuch")


def test_a_recipe_of_ones_own_is_read_from_its_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('family = "ngram"\n[ngram]\norder = 2\n')
    assert load_recipe(str(path)).ngram.order == 2
    path.write_text("family = ")
    with pytest.raises(InputError, match="is not TOML"):
        load_recipe(str(path))
    with pytest.raises(InputError, match="No such file"):
        load_recipe(str(tmp_path / "absent.toml"))


def test_a_mixture_lays_its_own_settings_over_its_parts():
    mixture = load_recipe("mixture", ["ngram.order=2", "seed=9"])
    part = part_recipe(mixture, PartSettings(recipe="ngram"), seed=9)
    assert (part.ngram.order, part.seed) == (2, 9)
    assert (
        part_recipe(load_recipe("mixture"), PartSettings(recipe="ngram"), seed=9).ngram.order
        == load_recipe("ngram").ngram.order
    )


def test_a_part_is_described_with_the_text_and_tokenizer_of_its_mixture():
    mixture = load_recipe("mixture", ["tokenizer.kind=bpe", "corpus.unit=paragraph"])
    for name in mixture.mixture.recipes:
        part = part_recipe(mixture, PartSettings(recipe=name), seed=1)
        assert (part.tokenizer, part.corpus) == (mixture.tokenizer, mixture.corpus)


def test_a_mixture_of_mixtures_is_refused():
    with pytest.raises(InputError, match="itself a mixture"):
        part_recipe(load_recipe("mixture"), PartSettings(recipe="quickstart"), seed=1)


@pytest.mark.parametrize(
    "value", ["9" * 5_000, "[" * 100_000], ids=["a number of many digits", "many brackets"]
)
def test_a_value_that_toml_cannot_hold_is_refused_by_its_key(value):
    with pytest.raises(InputError, match=r"ngram\.order: must be a whole number"):
        load_recipe("ngram", [f"ngram.order={value}"])


TOKENIZER = WordTokenizer(Vocabulary(["i", "love", "cats", "dogs", "chase", "mice"]))


def trained_ngram(*assignments):
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [3, 4, 6], [5, 7, 8]])
    recipe = load_recipe("ngram", ["ngram.order=2", *assignments])
    texts = EncodedTexts(corpus, corpus, corpus)
    return train_single("test", recipe, TrainingInputs(TOKENIZER, texts, "cpu", SILENT))


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
        (["ngram.prune=[0, 2, 1]"], r"ngram\.prune: .*is \[0, 2, 1\]; .*must not be below the previous one$"),
        (["ngram.prune=2"], r"ngram\.prune: must be a list such as \[0, 0, 1\], given 2"),
        (["ngram.prune=[0, x]"], r"ngram\.prune: must be a list such as \[0, 0, 1\], given '\[0, x\]'"),
        (["ngram.k=0.5"], r"ngram\.k requires ngram\.smoothing=add-k, given 0\.5 with modified-kn"),
        (["ngram.buckets=2", "ngram.smoothing=add-k"], r"ngram\.buckets requires .*jelinek-mercer"),
        (["ngram.order=2", "ngram.prune=[0, 0, 1]"], r"ngram\.prune: .*of 3 orders, but ngram\.order is 2"),
        (["ngram.prune_entropy=-1"], r"ngram\.prune_entropy: .* given -1"),
        (["ngram.quantize_bits=4"], r"ngram\.quantize_bits: .* given 4"),
        (["ngram.direction=sideways"], r"ngram\.direction: .* given 'sideways'"),
        (
            ["ngram.smoothing=witten-bell", "ngram.discounts=held-out"],
            r"ngram\.discounts: .*witten-bell, which has no discounts; use absolute, kneser-ney, modified",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(assignments, said):
    with pytest.raises(InputError, match=said):
        load_recipe("ngram", assignments)


@pytest.mark.parametrize("name", get_args(SmoothingName))
def test_every_smoothing_can_be_trained_by_its_name(name):
    result = trained_ngram(f"ngram.smoothing={name}")
    assert result.facts["smoothing"] == name
    assert {"ngrams", "discounts", "fallback_orders"} <= result.facts.keys()
    row = np.exp(result.model.next_log_probs(result.model.initial_state(1))[0])
    assert row.sum() == pytest.approx(1)


def test_the_settings_of_a_smoothing_reach_it():
    assert trained_ngram("ngram.smoothing=add-k", "ngram.k=0.25").facts["k"] == 0.25
    weights = trained_ngram("ngram.smoothing=jelinek-mercer", "ngram.buckets=3").facts["lambdas"]
    assert [len(row) for row in weights] == [3, 3]
    assert trained_ngram("ngram.discounts=held-out").facts["discounts_from"] == "held-out"
    assert trained_ngram("ngram.prune=[0, 1]").facts["ngrams"] == [9, 2]  # «<s> i» and «i love» occur twice


def test_a_backward_model_is_a_forward_one_of_reversed_sentences():
    """One of three sentences ends in «mice», the others end in «cats» and «dogs»."""
    result = trained_ngram("ngram.direction=backward", "ngram.smoothing=mle")
    row = np.exp(result.model.next_log_probs(result.model.initial_state(1))[0])
    assert row[TOKENIZER.vocabulary.id_of("mice")] == pytest.approx(1 / 3)
    assert row[TOKENIZER.vocabulary.id_of("i")] == 0
    assert result.figures["test"]["perplexity"] is not None  # the test text is reversed too


def test_a_model_is_quantised_where_the_recipe_says_so():
    result = trained_ngram("ngram.quantize_bits=8")
    assert result.model.automaton.log10_probs.dtype == np.uint8
    assert not result.model.normalised
    assert result.facts["normalisation"]["largest_deviation"] < 0.1
    assert trained_ngram().model.automaton.log10_probs.dtype == np.float32


def test_a_model_is_pruned_by_entropy_where_the_recipe_says_so():
    result = trained_ngram("ngram.prune_entropy=0.05")
    before, after = trained_ngram().facts["ngrams"], result.facts["ngrams"]
    assert result.facts["ngrams_before_pruning"] == before
    assert after[0] == before[0]
    assert 0 <= after[1] < before[1]
    assert result.model.automaton.num_arcs < trained_ngram().model.automaton.num_arcs


def test_keys_that_cannot_act_on_published_models_are_refused():
    models = 'mixture.models=["a", "b"]'
    for kind, key in (("dynamic", "prune_entropy=1e-8"), ("dynamic", "order=3"), ("static", "order=3")):
        with pytest.raises(InputError, match=rf"ngram\.{key.split('=')[0]} has no effect on a {kind}"):
            load_recipe("ngram-mixture", [models, f"mixture.kind={kind}", f"ngram.{key}"])
    assert load_recipe("ngram-mixture", [models, "ngram.prune_entropy=1e-8"]).ngram.prune_entropy == 1e-8


SMALL = [
    "neural.embedding_size=12",
    "neural.hidden_size=16",
    "train.learning_rate=1e-2",
    "train.batch_size=8",
    "train.validations=2",
    "train.precision=float32",
]
FAMILIES = ["feed-forward", "elman", "lstm", "gru", "mingru"]


def trained_network(name, *assignments, corpus=None):
    text = corpus or families.corpus()
    recipe = load_recipe(name, [*SMALL, "train.epochs=8", *assignments])
    texts = EncodedTexts(text, text, None)
    return train_single("test", recipe, TrainingInputs(families.tokenizer(), texts, "cpu", SILENT))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_learns_and_comes_back_from_a_checkpoint(name, tmp_path):
    """5 of 37 words can follow each word: perplexity 7 is good, 30 comes from unigram counts."""
    result = trained_network(name)
    assert result.model.family == name
    assert result.figures["valid"]["perplexity"] < 12
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
    write_checkpoint(tmp_path, result.model, families.tokenizer(), description)
    loaded = load_checkpoint(tmp_path).model
    batch = pad_sequences([[3, 4, 5], [6]])
    scores = [score_sequences(m, m.initial_state(2), *batch) for m in (loaded, result.model)]
    np.testing.assert_allclose(scores[0], scores[1], atol=0.05)  # the loaded model may be quantised


def test_a_backward_network_is_a_forward_one_of_reversed_sentences():
    backward = trained_network("gru", "direction=backward", "train.max_steps=5")
    forward = trained_network("gru", "train.max_steps=5", corpus=families.corpus().reversed())
    assert [m.recipe.reading_direction for m in (backward, forward)] == ["backward", "forward"]
    assert backward.figures == forward.figures


def test_vectors_of_a_file_are_what_training_starts_from(tmp_path):
    """After one tiny step, the vectors are still multiples of the file's vectors."""
    path = tmp_path / "vectors.txt"
    path.write_text("w3 " + "1 -1 " * 6 + "\nelsewhere " + "1 1 " * 6 + "\n")
    settings = [f"train.embeddings={path}", "train.max_steps=1", "train.learning_rate=1e-9"]
    result = trained_network("lstm", *settings)
    vector = result.model.network.embedding.weight[families.tokenizer().encode("w3")[0]].detach().numpy()
    assert vector / vector[0] == pytest.approx([1, -1] * 6, rel=1e-3)
    assert result.facts["embeddings"] == {"source": "vectors.txt", "tokens": 1}


def test_vectors_of_counts_start_a_network_and_are_told():
    result = trained_network("lstm", "train.embeddings=counts", "train.max_steps=1")
    assert result.facts["embeddings"]["source"] == "counts"
    assert result.facts["embeddings"]["tokens"] > 1


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["neural.window=3"], r"neural\.window requires neural\.cell=feed-forward, given lstm"),
        (["neural.cell=mingru", "neural.weight_drop=0.2"], r"neural\.weight_drop requires .* given mingru"),
        (["train.dropout_start=0.5", "neural.dropout=0"], r"train\.dropout_start requires .* given 0"),
        (["neural.attention_window=9"], r"neural\.attention_window requires neural\.attention="),
        (["neural.attention=dot"], r"neural\.attention: must be 'none', 'additive'"),
        (["neural.attention=scaled", "neural.attention_window=9999"], r"must be at most 512, given 9999"),
    ],
)
def test_a_key_that_would_do_nothing_or_cannot_be_is_refused(assignments, said):
    with pytest.raises(InputError, match=said) as caught:
        load_recipe("lstm", assignments)
    assert caught.value.param.startswith(("neural.", "train."))


def test_one_key_turns_models_of_both_families_round():
    assert load_recipe("ngram", ["direction=backward"]).reading_direction == "backward"
    assert load_recipe("ngram", ["ngram.direction=backward"]).reading_direction == "backward"
    assert load_recipe("lstm", ["direction=backward"]).reading_direction == "backward"
    assert load_recipe("lstm").reading_direction == "forward"


@pytest.mark.parametrize(
    ("recipe", "assignments", "said"),
    [
        ("mixture", ["direction=backward"], r"direction applies to the families ngram and neural"),
        ("ngram", ["direction=forward", "ngram.direction=backward"], r"ngram\.direction is backward, but"),
        ("lstm", ["direction=up"], r"direction: must be 'forward' or 'backward', given 'up'"),
    ],
)
def test_directions_that_clash_are_refused(recipe, assignments, said):
    with pytest.raises(InputError, match=said):
        load_recipe(recipe, assignments)
