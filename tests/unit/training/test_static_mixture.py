"""Static mixtures of n-gram models, and their common vocabulary."""

import json

import numpy as np
import pytest

from models.checkpoint.load import load_checkpoint
from models.errors import InputError
from models.language_model import BOS, EOS, UNK, Vocabulary, score_sequences
from models.mixture import MixtureModel
from models.tokenizers import CharacterTokenizer, WordTokenizer
from tests.reference import backoff
from tests.support import families
from training.commands import run_evaluate, run_train
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.ngram.estimate import estimate
from training.progress import Progress
from training.recipe import NGramSettings
from training.static_mixture import id_translation, mix_statically, remap, union_tokenizer

pytestmark = pytest.mark.usefixtures("no_pictures")

ANIMALS = [
    f"the {a} sat on the {p}" for a in ("cat", "dog", "owl", "hen") for p in ("mat", "bed", "roof")
] * 2
TRADES = [f"the {t} sold a {g} to me" for t in ("smith", "baker", "dog") for g in ("pan", "loaf", "mat")] * 2
BOTH = [
    "the cat sat on the bed",
    "the baker sold a mat to me",
    "the smith sold a loaf to me",
    "the owl sat on me",
]
STATIC = "mixture.kind=static"


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Registry of two small models with different words, and texts of both kinds."""
    folder = tmp_path_factory.mktemp("static")
    for name, lines in {"animals": ANIMALS, "trades": TRADES, "both": BOTH}.items():
        (folder / f"{name}.txt").write_text("\n".join(lines))
    for name in ("animals", "trades"):
        train(folder, "ngram", name, corpus=name, assignments=["ngram.order=3"])
    return folder


def train(folder, recipe, name, *, corpus="animals", valid="both", assignments=()):
    return run_train(
        recipe,
        name=name,
        registry=folder / "r",
        corpus=[folder / f"{corpus}.txt"] if corpus else [],
        valid=[folder / f"{valid}.txt"] if valid else [],
        assignments=assignments,
    )


def models_of(*names):
    return f"mixture.models={json.dumps(names)}"


@pytest.fixture(scope="module")
def mixture(registry):
    parts = [models_of("animals", "trades")]
    return train(registry, "ngram-mixture", "both", corpus="both", valid=None, assignments=parts)


def test_one_n_gram_model_is_published_that_needs_no_parts(registry, mixture):
    version = registry / "r" / "both" / "versions" / "1"
    checkpoint = load_checkpoint(version)
    assert checkpoint.manifest.family == "ngram"
    assert not (version / "parts").exists()
    assert [len(o) for o in (mixture["ngrams"], mixture["valid"]["hit_rates"])] == [3, 3]


def test_it_knows_the_words_of_all_parts(registry, mixture):
    vocabulary = load_checkpoint(registry / "r" / "both" / "versions" / "1").model.vocabulary
    assert {"cat", "baker", "mat"} <= vocabulary.ids.keys()
    assert mixture["valid"]["oov"] == 0


def test_parts_are_remembered_with_their_weights_and_their_own_figures(registry, mixture):
    names, weights = zip(*((p["name"], p["weight"]) for p in mixture["parts"]), strict=True)
    assert names == ("animals@1", "trades@1")
    assert sum(weights) == pytest.approx(1)
    assert list(weights) == mixture["weights"]
    for part in mixture["parts"]:
        alone = run_evaluate(
            part["name"],
            corpus=[registry / "both.txt"],
            registry=registry / "r",
            context="sentence",
            unit="line",
            window=9,
            device="cpu",
        )
        assert alone["oov"] == part["valid"]["oov"] > 0
        assert alone["logprob"] == pytest.approx(part["valid"]["logprob"], rel=1e-6)


def test_weights_are_fitted_on_all_of_the_text_and_its_figures_are_not_called_held_out(registry, mixture):
    assert mixture["data"].keys() == {"valid"}
    assert mixture["data"]["valid"]["sentences"] == len(BOTH)
    assert mixture["weights_fitted_on"] == ["both.txt"]
    assert "the weights were fitted on this text (both.txt)" in mixture["notes"][0]
    card = (registry / "r" / "both" / "versions" / "1" / "MODEL_CARD.md").read_text()
    assert "Figures on valid are not held out: the weights were fitted on this text (both.txt)." in card
    assert "held-out figures" not in card.lower()
    assert "- tokenizer: from animals@1, trades@1" in card


@pytest.mark.parametrize("recipe", ["ngram-mixture", "mixture"])
def test_validation_text_alone_is_as_good_and_two_texts_are_one_too_many(registry, mixture, recipe):
    same = [models_of("animals", "animals"), "mixture.recipes=[]"]
    result = train(registry, recipe, "valid", corpus=None, assignments=same)
    assert result["data"]["valid"]["sentences"] == len(BOTH)
    with pytest.raises(InputError, match="give --corpus or --valid, not both"):
        train(registry, recipe, "valid", assignments=same)


def test_the_card_shows_parts_weights_and_n_grams(registry, mixture):
    card = (registry / "r" / "both" / "versions" / "1" / "MODEL_CARD.md").read_text()
    assert "It is a static mixture" in card
    assert f"| animals@1 | {mixture['weights'][0]:.3f} |" in card
    assert "fitted by EM" in card
    assert "perplexities are only roughly comparable" in card
    assert "| order | n-grams | tokens found |" in card


def test_recipes_may_be_parts_too_and_be_published(registry):
    recipe = registry / "bigrams.toml"
    recipe.write_text('family = "ngram"\n[ngram]\norder = 2\n')
    parts = [models_of("trades"), f'mixture.recipes=["{recipe}"]', STATIC, "mixture.publish_parts=true"]
    result = train(registry, "mixture", "mixed", assignments=parts)
    assert [(p["name"], p["family"]) for p in result["parts"]] == [
        ("bigrams@1", "ngram"),
        ("trades@1", "ngram"),
    ]
    assert load_checkpoint(registry / "r" / "bigrams" / "versions" / "1").model.order == 2


def test_the_one_model_is_pruned_and_quantised_and_its_parts_are_not(registry, mixture):
    recipe = registry / "trigrams.toml"
    recipe.write_text('family = "ngram"\n[ngram]\norder = 3\nquantize_bits = 8\n')
    settings = [models_of("trades"), f'mixture.recipes=["{recipe}"]', "mixture.publish_parts=true"]
    shrunk = train(
        registry,
        "ngram-mixture",
        "shrunk",
        assignments=[*settings, "ngram.prune_entropy=1e-2", "ngram.quantize_bits=8"],
    )
    assert sum(shrunk["ngrams"]) < sum(shrunk["ngrams_before_pruning"])
    assert shrunk["normalisation"]["largest_deviation"] > 0
    model = load_checkpoint(registry / "r" / "shrunk" / "versions" / "1").model
    assert (model.automaton.log10_probs.dtype, model.normalised) == (np.uint8, False)
    part = load_checkpoint(registry / "r" / "trigrams" / "versions" / "1")
    assert part.model.automaton.log10_probs.dtype == np.float32
    assert "ngrams_before_pruning" not in part.metrics


def test_only_n_gram_models_can_be_mixed_statically(registry):
    small = ["neural.hidden_size=8", "neural.embedding_size=8", "train.max_steps=1", "train.batch_size=2"]
    train(registry, "lstm", "lstm", assignments=["tokenizer.kind=word", *small])
    with pytest.raises(InputError, match="n-gram models only; lstm@1 is of the family lstm"):
        train(registry, "ngram-mixture", "x", corpus="absent", assignments=[models_of("animals", "lstm")])
    with pytest.raises(InputError, match=r"n-gram models only; 'lstm' in mixture\.recipes is of the family"):
        train(registry, "mixture", "x", corpus="absent", assignments=[STATIC])


def test_tokenizers_that_do_not_fit_are_refused_before_any_text_is_read(registry):
    train(registry, "ngram", "lower", assignments=["tokenizer.lowercase=true"])
    with pytest.raises(InputError, match="lowercase is False in one and True in the other"):
        train(registry, "ngram-mixture", "x", corpus="absent", assignments=[models_of("animals", "lower")])
    dynamic = [models_of("animals", "trades"), "mixture.recipes=[]"]
    with pytest.raises(
        InputError, match=r"trades@1 has another tokenizer .*one tokenizer: use mixture\.kind=static"
    ):
        train(registry, "mixture", "x", corpus="absent", assignments=dynamic)


def test_a_mixture_needs_two_parts(registry):
    with pytest.raises(InputError, match="at least 2 parts, given 0 recipes and 1 models"):
        train(registry, "ngram-mixture", "x", corpus="absent", assignments=[models_of("animals")])


def test_parts_read_forward(registry):
    backward = [models_of("animals", "trades"), 'mixture.recipes=["ngram"]', "ngram.direction=backward"]
    with pytest.raises(InputError, match="'ngram', which reads backward"):
        train(registry, "ngram-mixture", "x", corpus="absent", assignments=backward)


def halves():
    """Models of two halves of a text, of order 4 and 3."""
    whole = families.corpus(2000, seed=3)
    rows = [whole.sentence(i) for i in range(whole.num_sentences)]
    vocabulary = families.tokenizer().vocabulary
    texts = (EncodedCorpus.from_sentences(rows[:1000]), EncodedCorpus.from_sentences(rows[1000:]))
    return [
        estimate(text, vocabulary, order=order, progress=Progress()).model
        for text, order in zip(texts, (4, 3), strict=True)
    ]


def test_held_out_perplexity_is_close_to_that_of_the_dynamic_mixture_and_below_each_part():
    parts, held_out = halves(), families.corpus(300, seed=8)
    static, facts = mix_statically(
        parts, families.tokenizer().vocabulary, held_out, NGramSettings(), progress=Progress()
    )
    dynamic = MixtureModel(parts, facts["weights"])
    models = [static, dynamic, *parts]
    figures = [evaluate(model, held_out, progress=Progress()).perplexity for model in models]
    assert figures[0] == pytest.approx(figures[1], rel=0.01)
    assert figures[0] < min(figures[2:])


def test_listed_n_grams_have_the_probability_of_the_dynamic_mixture():
    parts, held_out = halves(), families.corpus(300, seed=8)
    static, facts = mix_statically(
        parts, families.tokenizer().vocabulary, held_out, NGramSettings(), progress=Progress()
    )
    dynamic = MixtureModel(parts, facts["weights"])
    tokens = held_out.sentence(int(np.diff(held_out.offsets).argmax())).astype(np.int64)[None]
    lengths = np.array([tokens.shape[1]])
    scores = static.score_detailed(static.initial_state(1), tokens, lengths)
    expected = score_sequences(dynamic, dynamic.initial_state(1), tokens, lengths)
    charged_nothing = scores.log_backoffs[0] == 0
    assert charged_nothing.any()
    assert scores.log_probs[0, charged_nothing] == pytest.approx(expected[0, charged_nothing], abs=2e-6)


def test_em_finds_the_weights_of_the_texts_that_the_parts_are_of():
    """Four in five held-out sentences are of the first part's kind."""
    vocabulary = Vocabulary([f"w{i}" for i in range(20)])
    random = np.random.default_rng(0)
    kinds = [random.dirichlet(np.full(20, 0.3)) for _ in range(2)]

    def text(shares, size):
        rows = [random.choice(20, 10, p=kinds[random.choice(2, p=shares)]) + 3 for _ in range(size)]
        return EncodedCorpus.from_sentences(rows)

    parts = [
        estimate(text(shares, 3000), vocabulary, order=1, progress=Progress()).model
        for shares in ([1, 0], [0, 1])
    ]
    _, facts = mix_statically(parts, vocabulary, text([0.8, 0.2], 3000), NGramSettings(), progress=Progress())
    assert facts["weights"] == pytest.approx([0.8, 0.2], abs=0.03)


def words(*tokens, **rules):
    return WordTokenizer(Vocabulary(tokens), **rules)


def test_the_union_has_the_first_parts_words_and_then_what_the_others_add():
    joined = union_tokenizer([("a", words("x", "y")), ("b", words("z", "y")), ("c", words("x"))])
    assert joined.vocabulary.tokens[3:] == ("x", "y", "z")


def test_the_rules_of_the_parts_are_kept():
    rules = {"pattern": r"\w+", "lowercase": True, "marked_unknown": "unknown"}
    joined = union_tokenizer([("a", words("x", **rules)), ("b", words("z", **rules))])
    assert {k: v for k, v in joined.settings().items() if k != "tokens"} == rules


def test_parts_that_add_nothing_leave_the_first_tokenizer():
    first = words("x", "y")
    assert union_tokenizer([("a", first), ("b", words("y"))]) is first
    characters = CharacterTokenizer(Vocabulary("xy"))
    assert union_tokenizer([("a", characters), ("b", CharacterTokenizer(Vocabulary("xy")))]) is characters


def test_rules_that_differ_are_named():
    with pytest.raises(
        InputError, match=r"of a@1 \(word\) and b@2 \(word\) .*: lowercase is False in one and True"
    ):
        union_tokenizer([("a@1", words("x")), ("b@2", words("x", lowercase=True))])


def test_parts_of_another_unicode_form_cannot_be_joined():
    forms = ["nfc", "none"]
    for first, second in (forms, forms[::-1]):
        parts = [(form, words(word, normalise=form)) for form, word in ((first, "x"), (second, "y"))]
        with pytest.raises(InputError, match=f"normalise is '{first}' in one and '{second}' in the other"):
            union_tokenizer(parts)
    joined = union_tokenizer([("a", words("x", normalise="nfc")), ("b", words("y", normalise="nfc"))])
    assert joined.normaliser.form == "nfc"


@pytest.mark.parametrize("other", [words("x"), CharacterTokenizer(Vocabulary("xz"))])
def test_only_word_tokenizers_can_be_joined(other):
    with pytest.raises(InputError, match=r"b has another tokenizer \((word|char)\) than a \(char\)"):
        union_tokenizer([("a", CharacterTokenizer(Vocabulary("xy"))), ("b", other)])


def test_translation_keeps_control_tokens_and_makes_strangers_unknown():
    ids = id_translation(Vocabulary(["x", "y"]), Vocabulary(["y", "<s>"]))
    assert ids.tolist() == [UNK, BOS, EOS, UNK, 3]


@pytest.mark.parametrize("seed", range(6))
def test_a_model_moved_to_a_larger_vocabulary_says_the_same_of_its_words(seed):
    model = backoff.random_model(seed, order=4)
    ids = np.array([0, 1, 2, *np.random.default_rng(seed).permutation(np.arange(3, 11))[:5]], np.int32)
    moved = backoff.from_orders(remap(backoff.to_orders(model), ids, 11))
    assert len(moved.probs) == len(model.probs) + 3
    for ngram in model.probs:
        there = tuple(ids[list(ngram)].tolist())
        assert moved.probs[there] == pytest.approx(model.probs[ngram], rel=1e-6)
        assert moved.backoffs.get(there, 1.0) == pytest.approx(model.backoffs.get(ngram, 1.0), rel=1e-6)


def test_words_that_a_model_does_not_have_are_impossible_and_empty_the_context():
    model = backoff.random_model(0)
    ids = np.array([0, 1, 2, 4, 5, 6, 7, 8], np.int32)
    moved = backoff.from_orders(remap(backoff.to_orders(model), ids, 9))
    assert moved.probability(3, (4,)) == 0
    assert moved.row((4, 3)) == pytest.approx(moved.row(()))
