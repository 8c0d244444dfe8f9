"""Mixtures fitted in one pass over each text: reported metrics match the resulting models."""

import json

import numpy as np
import pytest

from models.checkpoint.load import load_checkpoint
from models.errors import InputError
from tests.support import families
from training import commands
from training.commands import run_train
from training.evaluation.evaluate import evaluate
from training.mixture import check_mixing_plan, corpus_context_lengths, mix_dynamically
from training.progress import SILENT
from training.recipe import load_recipe
from training.single_model import Trained, TrainingInputs
from training.texts import EncodedTexts

pytestmark = pytest.mark.usefixtures("no_pictures")

TEXTS = EncodedTexts(families.corpus(), families.corpus(120, seed=3), families.corpus(90, seed=4))
SMALL = [
    "tokenizer.kind=word",
    "ngram.order=3",
    "neural.hidden_size=8",
    "neural.embedding_size=8",
    "train.max_steps=2",
    "train.max_minutes=5",
    "train.batch_size=2",
    "train.bptt_length=4",
]


def mixed(assignments, *names):
    recipe = load_recipe("mixture", assignments)
    parts = [Trained(name, recipe, families.model(name), (), {}, {}, 0.0) for name in names]
    inputs = TrainingInputs(families.tokenizer(), TEXTS, "cpu", SILENT)
    return mix_dynamically("m", recipe, parts, inputs, began=0.0)


BY_ORDER, STREAM, CACHE = "mixture.weights=by-order", "mixture.context=stream", "mixture.cache=true"


@pytest.mark.parametrize(
    "assignments",
    [
        [],
        [BY_ORDER],
        [BY_ORDER, STREAM],
        [BY_ORDER, CACHE, "cache.window=50"],
        [BY_ORDER, CACHE, "cache.window=50", "cache.marginals=true"],
        [CACHE, "cache.window=50", "cache.around=neural"],
    ],
)
@pytest.mark.parametrize("names", [("ngram", "lstm"), ("lstm", "ngram", "gru")])
def test_figures_are_those_of_the_model_itself(assignments, names):
    whole = mixed(assignments, *names)
    for split, corpus in (("valid", TEXTS.valid), ("test", TEXTS.test)):
        measured = evaluate(whole.model, corpus, context=whole.context, progress=SILENT)
        assert whole.figures[split]["perplexity"] == pytest.approx(measured.perplexity, rel=1e-4)
        assert whole.figures[split]["context"] == whole.context
    mixture = whole.parts[0] if len(whole.parts) == 1 else whole
    for part, figures in zip(mixture.parts, mixture.part_figures, strict=True):
        measured = evaluate(part.model, TEXTS.valid, context=whole.context, progress=SILENT)
        tolerance = 1e-4 if "cache" in part.title else 1e-5
        assert figures["valid"]["perplexity"] == pytest.approx(measured.perplexity, rel=tolerance)


def test_stages_are_parts_of_one_another_by_name():
    outside = mixed([CACHE, "cache.window=50"], "ngram", "lstm")
    assert [part.title for part in outside.parts] == ["m without cache"]
    assert [part.title for part in outside.parts[0].parts] == ["ngram", "lstm"]
    inside = mixed([CACHE, "cache.window=50", "cache.around=neural"], "ngram", "lstm")
    assert [part.title for part in inside.parts] == ["ngram", "lstm with cache"]
    assert [part.title for part in inside.parts[1].parts] == ["lstm"]


def test_weights_by_context_are_not_worse_than_common_ones_on_the_text_they_were_fitted_on():
    common = mixed([], "ngram", "lstm")
    by_context = mixed([BY_ORDER], "ngram", "lstm")
    assert by_context.figures["valid"]["logprob"] >= common.figures["valid"]["logprob"] - 1e-3
    assert len(by_context.facts["weights_by_context"]) == 4
    assert by_context.facts["weights"] == pytest.approx(common.facts["weights"])


@pytest.mark.parametrize("around", ["mixture", "neural"])
def test_a_single_part_gets_a_cache_and_no_mixture(around):
    whole = mixed([CACHE, "cache.window=40", f"cache.around={around}"], "gru")
    assert whole.title == "m"
    assert whole.model.inner is families.model("gru")


@pytest.mark.parametrize("context", ["sentence", "stream"])
def test_context_lengths_of_a_text_are_those_met_on_the_way(context):
    model, corpus = families.model("ngram"), families.corpus(30, seed=9)
    found = corpus_context_lengths(model, corpus)
    expected, state = [], None
    for row in range(corpus.num_sentences):
        if state is None or context == "sentence":
            state = model.initial_state(1)
        else:
            state = model.advance(state, np.array([1]))
        for token in [*corpus.sentence(row), 2]:
            expected.append(model.context_lengths(state)[0])
            state = model.advance(state, np.array([token]))
    assert found.tolist() == expected


def test_plans_that_no_part_can_fulfil_are_refused_by_key():
    with pytest.raises(InputError, match=r"mixture\.weights is 'by-order', but no part .* are neural, gru"):
        check_mixing_plan(load_recipe("mixture", [BY_ORDER]), ["neural", "gru"])
    with pytest.raises(InputError, match=r"cache\.around is 'neural', but no part .* are ngram, ngram"):
        check_mixing_plan(load_recipe("mixture", [CACHE, "cache.around=neural"]), ["ngram", "ngram"])


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["cache.window=9"], "cache.window requires mixture.cache=true, given 9"),
        (["mixture.cache=true", "cache.window=0"], "cache.window"),
        (["mixture.cache=true", "mixture.context=sentence"], "mixture.context=sentence"),
        (["mixture.kind=static", "mixture.weights=by-order"], "static mixture is one n-gram model"),
        (["mixture.kind=static", "mixture.cache=true"], "static mixture is one n-gram model"),
    ],
)
def test_recipe_keys_that_do_not_go_together_are_refused(assignments, said):
    with pytest.raises(InputError, match=said):
        load_recipe("mixture", assignments)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixing") / "corpus.txt"
    path.write_text("the cat sat on the mat\na dog lay on a rug\nthe dog saw the cat\n" * 20)
    return path


def trained(corpus, folder, *assignments):
    """Train and publish a mixture by its recipe, and load it."""
    settings = [*SMALL, *assignments]
    result = run_train("mixture", name="m", registry=folder, corpus=[corpus], assignments=settings)
    return result, load_checkpoint(folder / "m" / "versions" / "1")


@pytest.mark.parametrize(
    ("assignments", "families_inside"),
    [
        (["mixture.weights=by-order"], ["mixture", ["ngram", "lstm"]]),
        (['mixture.parts=[{recipe="gru"}]'], ["mixture", ["ngram", "lstm", "gru"]]),
        (["mixture.cache=true", "mixture.weights=by-order"], ["cache", [["mixture", ["ngram", "lstm"]]]]),
        (["mixture.cache=true", "cache.around=neural"], ["mixture", ["ngram", ["cache", ["lstm"]]]]),
        (["mixture.cache=true", 'mixture.recipes=["lstm"]'], ["cache", ["lstm"]]),
        (["mixture.cache=true", 'mixture.recipes=["ngram"]'], ["cache", ["ngram"]]),
    ],
)
def test_every_kind_of_mixture_is_published_and_loaded_again(corpus, tmp_path, assignments, families_inside):
    result, checkpoint = trained(corpus, tmp_path, *assignments)

    def inside(model):
        parts = [model.inner] if model.family == "cache" else getattr(model, "parts", ())
        return [model.family, [inside(part) for part in parts]] if parts else model.family

    assert inside(checkpoint.model) == families_inside
    assert result["context"] == ("stream" if "mixture.cache=true" in assignments else "sentence")
    assert all(part["step_ms"] > 0 for part in result["parts"])
    assert "language model" in (checkpoint.path / "MODEL_CARD.md").read_text()


def test_published_parts_are_those_that_were_trained_not_what_they_become_on_the_way(corpus, tmp_path):
    settings = ["mixture.cache=true", "mixture.publish_parts=true"]
    result, _ = trained(corpus, tmp_path, *settings)
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["lstm", "m", "ngram"]
    assert [part["name"] for part in result["parts"]] == ["mixture without cache"]
    inner = json.loads((tmp_path / "m/versions/1/parts/0/metrics.json").read_text())
    assert [part["name"] for part in inner["parts"]] == ["ngram", "lstm"]


def test_the_card_has_the_figures_of_the_parts_within_parts(corpus, tmp_path):
    result, _ = trained(corpus, tmp_path, "mixture.cache=true")
    assert [part["name"] for part in result["parts"][0]["parts"]] == ["ngram", "lstm"]
    card = (tmp_path / "m/versions/1/MODEL_CARD.md").read_text()
    for part in result["parts"][0]["parts"]:
        assert f"| {part['name']} | {part['weight']:.3f} | valid |" in card


def test_a_published_model_gets_a_cache(corpus, tmp_path):
    run_train("ngram", name="words", registry=tmp_path, corpus=[corpus], assignments=["ngram.order=2"])
    settings = ["mixture.cache=true", "mixture.recipes=[]", 'mixture.models=["words"]', "cache.window=30"]
    result = run_train("mixture", name="m", registry=tmp_path, corpus=[corpus], assignments=settings)
    assert result["cache"]["window"] == 30
    assert [part["name"] for part in result["parts"]] == ["words@1"]
    assert load_checkpoint(tmp_path / "m" / "versions" / "1").model.inner.family == "ngram"


def test_completions_of_a_mixture_are_words_of_all_its_texts(tmp_path, monkeypatch):
    lines = {"old": "the cat sat\n", "new": "the dog ran\n", "last": "a hen\n"}
    for name, line in lines.items():
        (tmp_path / f"{name}.txt").write_text(line * 200, encoding="utf-8")

    def train(recipe, name, *settings, text):
        run_train(
            recipe, name=name, registry=tmp_path, corpus=[tmp_path / f"{text}.txt"], assignments=settings
        )
        return set(load_checkpoint(tmp_path / name / "versions" / "1").tokenizer.lexicon)

    assert train("ngram", "old", "tokenizer.kind=char", "ngram.order=2", text="old") == {"the", "cat", "sat"}
    models, parts = 'mixture.models=["old"]', 'mixture.recipes=["ngram"]'
    mixed = train("mixture", "grown", models, parts, "ngram.order=3", text="new")
    assert mixed == {"the", "cat", "sat", "dog", "ran"}
    models = 'mixture.models=["grown", "old"]'
    assert train("mixture", "fitted", models, "mixture.recipes=[]", text="last") == mixed
    load = commands._load_published

    def load_without_last_lexicon(*given, **options):
        found = load(*given, **options)
        if found:
            found[-1].tokenizer.lexicon = ()  # as of a model of an earlier release
        return found

    monkeypatch.setattr(commands, "_load_published", load_without_last_lexicon)
    assert train("mixture", "open", models, parts, "ngram.order=3", text="new") == set()
