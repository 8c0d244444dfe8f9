"""Mixtures fitted from one reading of each text: their figures are those of the models that come out."""

import json

import numpy as np
import pytest

from models.checkpoint.load import load_checkpoint
from models.errors import InvalidInputError
from tests.support import families
from training.commands import run_train
from training.evaluation.evaluate import evaluate
from training.mixture import MixingPlan, check_mixing_plan, corpus_context_lengths, mix_dynamically
from training.progress import SILENT
from training.recipe import load_recipe
from training.texts import EncodedTexts

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


def mixed(plan, *names):
    return mix_dynamically([families.model(name) for name in names], TEXTS, plan, progress=SILENT)


def last_stage(mixture):
    return mixture.mixture_with_cache or mixture.mixture or mixture.part_with_cache


@pytest.mark.parametrize(
    "plan",
    [
        MixingPlan(),
        MixingPlan(by_context=True),
        MixingPlan(by_context=True, context="stream"),
        MixingPlan(by_context=True, context="stream", window=50),
        MixingPlan(context="stream", window=50, around_part=True),
    ],
)
@pytest.mark.parametrize("names", [("ngram", "lstm"), ("lstm", "ngram", "gru")])
def test_figures_are_those_of_the_model_itself(plan, names):
    mixture = mixed(plan, *names)
    whole = last_stage(mixture)
    for split, corpus in (("valid", TEXTS.valid), ("test", TEXTS.test)):
        measured = evaluate(whole.model, corpus, context=plan.context, progress=SILENT)
        assert whole.figures[split]["perplexity"] == pytest.approx(measured.perplexity, rel=1e-4)
        assert whole.figures[split]["context"] == plan.context
    for name, figures in zip(names, mixture.part_figures, strict=True):
        measured = evaluate(families.model(name), TEXTS.valid, context=plan.context, progress=SILENT)
        assert figures["valid"]["perplexity"] == pytest.approx(measured.perplexity, rel=1e-5)


def test_weights_by_context_are_not_worse_than_common_ones_on_the_text_they_were_fitted_on():
    common = mixed(MixingPlan(), "ngram", "lstm").mixture
    by_context = mixed(MixingPlan(by_context=True), "ngram", "lstm").mixture
    assert by_context.figures["valid"]["logprob"] >= common.figures["valid"]["logprob"] - 1e-3
    assert len(by_context.facts["weights_by_context"]) == 4
    assert by_context.facts["weights"] == pytest.approx(common.facts["weights"])


def test_a_single_part_gets_a_cache_and_no_mixture():
    mixture = mixed(MixingPlan(context="stream", window=40), "gru")
    assert mixture.mixture is None
    assert mixture.mixture_with_cache.model.inner is families.model("gru")


@pytest.mark.parametrize("context", ["sentence", "stream"])
def test_context_lengths_of_a_text_are_those_met_on_the_way(context):
    model, corpus = families.model("ngram"), families.corpus(30, seed=9)
    found = corpus_context_lengths(model, corpus, context=context)
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
    with pytest.raises(
        InvalidInputError, match=r"mixture\.weights is 'by-order', but no part .*: neural, gru"
    ):
        check_mixing_plan(MixingPlan(by_context=True), ["neural", "gru"])
    with pytest.raises(InvalidInputError, match=r"cache\.around is 'neural', but no part .*: ngram"):
        check_mixing_plan(MixingPlan(window=9, around_part=True), ["ngram", "ngram"])


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["cache.window=9"], "cache.window acts with mixture.cache=true only, given 9"),
        (["mixture.cache=true", "cache.window=0"], "cache.window"),
        (["mixture.cache=true", "mixture.context=sentence"], "mixture.context=sentence"),
        (["mixture.kind=static", "mixture.weights=by-order"], "static mixture is one n-gram model"),
        (["mixture.kind=static", "mixture.cache=true"], "static mixture is one n-gram model"),
    ],
)
def test_recipe_keys_that_do_not_go_together_are_refused(assignments, said):
    with pytest.raises(InvalidInputError, match=said):
        load_recipe("mixture", assignments)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixing") / "corpus.txt"
    path.write_text("the cat sat on the mat\na dog lay on a rug\nthe dog saw the cat\n" * 20)
    return path


def trained(corpus, folder, *assignments):
    """A mixture by its recipe, published and loaded again."""
    settings = [*SMALL, *assignments]
    result = run_train("mixture", name="m", registry=folder, corpus=[corpus], assignments=settings)
    return result, load_checkpoint(folder / "m" / "versions" / "1")


@pytest.mark.parametrize(
    ("assignments", "families_inside"),
    [
        (["mixture.weights=by-order"], ["mixture", ["ngram", "lstm"]]),
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
    assert [part["name"] for part in result["parts"]]
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
