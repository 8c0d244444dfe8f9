"""The default models, one after the other, also if the training is stopped in between."""

import pytest

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import open_registry
from models.files import replace_file
from models.training_status import is_quickstart_due, quickstart_mark
from training import default_models
from training.commands import run_train
from training.progress import SILENT
from training.recipe import load_recipe
from training.texts import read_default_corpus

SMALL = """
family = "mixture"
[tokenizer]
kind = "unigram"
vocab_size = 400
[neural]
hidden_size = 16
embedding_size = 16
[train]
max_steps = 10
validations = 1
[mixture]
recipes = ["ngram", "lstm"]
publish_parts = true
drop_unused = false
"""


class StopError(Exception):
    """The end of the process."""


@pytest.fixture(scope="module")
def documentation():
    return read_default_corpus(SILENT)


@pytest.fixture
def small(tmp_path, monkeypatch, documentation):
    """Replace the recipe by a small one, and the text by a part of it; return a registry."""
    recipe = tmp_path / "small.toml"
    recipe.write_text(SMALL)
    monkeypatch.setattr(default_models, "_RECIPE", str(recipe))
    few = [one._replace(sentences=one.sentences[:300]) for one in documentation]
    monkeypatch.setattr("training.texts.read_default_corpus", lambda _: few)
    return open_registry(tmp_path / "registry", create=True)


def test_the_ngram_model_is_there_before_the_network_is_trained(small, monkeypatch):
    asked = []

    def train(recipe, *, name, **options):
        asked.append((name, small.models(), small.default()))
        return run_train(recipe, name=name, **options)

    monkeypatch.setattr(default_models, "run_train", train)
    result = default_models.run_quickstart(small.location)
    assert asked == [("ngram", [], None), ("mixture", ["ngram"], None)]
    assert small.models() == ["lstm", "mixture", "ngram"]
    assert small.default() == "mixture"
    assert {part["name"] for part in result["parts"]} == {"ngram@1", "lstm@1"}
    assert not is_quickstart_due(small)


def test_a_stopped_quickstart_goes_on_with_what_is_missing(small, monkeypatch):
    def stop(recipe, *, name, **options):
        if name == "mixture":
            raise StopError
        return run_train(recipe, name=name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(default_models, "run_train", stop)
        with pytest.raises(StopError):
            default_models.run_quickstart(small.location)
    assert small.models() == ["ngram"]
    assert is_quickstart_due(small)
    default_models.run_quickstart(small.location)
    assert small.versions("ngram") == small.versions("lstm") == small.versions("mixture") == [1]
    assert not quickstart_mark(small).exists()


def test_a_quickstart_whose_models_were_deleted_begins_again(small):
    replace_file(quickstart_mark(small), b"ngram@1")
    default_models.run_quickstart(small.location)
    assert small.models() == ["lstm", "mixture", "ngram"]
    assert not quickstart_mark(small).exists()


def test_the_parts_are_those_of_the_recipe_trained_at_once(small, tmp_path):
    default_models.run_quickstart(small.location)
    at_once = open_registry(tmp_path / "other", create=True)
    run_train(default_models._RECIPE, name="mixture", registry=at_once.location)
    for part in ("ngram", "lstm"):
        one, other = (
            load_checkpoint(store.fetch(store.resolve(part)), device="cpu", precision="float32")
            for store in (small, at_once)
        )
        assert one.tokenizer.fingerprint == other.tokenizer.fingerprint
        assert one.metrics["test"]["perplexity"] == pytest.approx(other.metrics["test"]["perplexity"])


def test_a_default_chosen_meanwhile_stays(small, monkeypatch):
    def choose(recipe, *, name, **options):
        result = run_train(recipe, name=name, **options)
        small.set_default("lstm") if name == "mixture" else None
        return result

    monkeypatch.setattr(default_models, "run_train", choose)
    default_models.run_quickstart(small.location)
    assert small.default() == "lstm"


def test_the_published_recipe_is_an_ngram_model_and_a_network():
    assert load_recipe("quickstart").mixture.recipes == ("ngram", "lstm")
