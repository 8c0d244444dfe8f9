"""Recipes: defaults, keys set anew, errors that name the key."""

import pytest

from models.errors import InvalidInputError
from training.mixture import part_recipe
from training.recipe import load_recipe, recipe_names


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_comes_with_the_package_is_valid(name):
    assert load_recipe(name).family in {"ngram", "neural", "mixture"}


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
        ("tokenizer=x", r"tokenizer: is a table of keys, given 'x'$"),
        ("famly=x", r"famly: there is no such key; a recipe has family, seed, "),
        ("ngram.ordr=3", r"ngram\.ordr: there is no such key; \[ngram\] has order, smoothing, k, "),
        ("ngram.smoothing=none", r"ngram\.smoothing: .* given 'none'"),
        ("tokenizer.vocab_size=2", r"tokenizer\.vocab_size: .* given 2"),
        ("neural.hidden_size=-5", r"neural\.hidden_size: .* given -5"),
        ("train.learning_rate=nan", r"train\.learning_rate"),
        ("tokenizer.pattern=[", r"tokenizer\.pattern: .*not a regular expression"),
        ("order", "--set takes key=value, given 'order'"),
        ("=3", "--set takes key=value"),
    ],
)
def test_a_wrong_key_or_value_is_named(assignment, said):
    with pytest.raises(InvalidInputError, match=said):
        load_recipe("ngram", [assignment])


def test_an_unknown_recipe_lists_the_known_ones():
    with pytest.raises(InvalidInputError, match=r"there are .*ngram"):
        load_recipe("nosuch")


def test_a_recipe_of_ones_own_is_read_from_its_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('family = "ngram"\n[ngram]\norder = 2\n')
    assert load_recipe(str(path)).ngram.order == 2
    path.write_text("family = ")
    with pytest.raises(InvalidInputError, match="is not TOML"):
        load_recipe(str(path))
    with pytest.raises(InvalidInputError, match="No such file"):
        load_recipe(str(tmp_path / "absent.toml"))


def test_a_mixture_lays_its_own_settings_over_its_parts():
    mixture = load_recipe("mixture", ["ngram.order=2", "seed=9"])
    part = part_recipe(mixture, "ngram")
    assert (part.ngram.order, part.seed) == (2, 9)
    assert part_recipe(load_recipe("mixture"), "ngram").ngram.order == load_recipe("ngram").ngram.order


def test_a_part_is_described_with_the_text_and_tokenizer_of_its_mixture():
    mixture = load_recipe("mixture", ["tokenizer.kind=bpe", "corpus.unit=paragraph"])
    for name in mixture.mixture.recipes:
        part = part_recipe(mixture, name)
        assert (part.tokenizer, part.corpus) == (mixture.tokenizer, mixture.corpus)


def test_a_mixture_of_mixtures_is_refused():
    with pytest.raises(InvalidInputError, match="itself a mixture"):
        part_recipe(load_recipe("mixture"), "quickstart")


@pytest.mark.parametrize(
    "value", ["9" * 5_000, "[" * 100_000], ids=["a number of many digits", "many brackets"]
)
def test_a_value_that_toml_cannot_hold_is_refused_by_its_key(value):
    with pytest.raises(InvalidInputError, match=r"ngram\.order: must be a whole number"):
        load_recipe("ngram", [f"ngram.order={value}"])
