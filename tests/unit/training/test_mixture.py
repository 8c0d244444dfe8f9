"""Mixtures fitted in one pass over each text: reported metrics match the resulting models."""

import json
from functools import partial

import httpx
import numpy as np
import pytest

from models.checkpoint.load import load_checkpoint
from models.errors import InputError
from service.settings import Settings
from tests.support import families
from tests.support.services import running
from training import commands
from training.commands import run_train
from training.evaluation.evaluate import evaluate
from training.mixture import check_mixing_plan, corpus_context_lengths, mix_dynamically
from training.mixture_fitting import fit_weights, fit_weights_by_context
from training.progress import SILENT
from training.purpose import TypingPlan
from training.recipe import load_recipe
from training.single_model import Trained, TrainingInputs
from training.texts import EncodedTexts

pytestmark = pytest.mark.usefixtures("no_pictures")

KEPT, DROPPED = "mixture.drop_unused=false", "mixture.drop_unused=true"
"""The small networks of these tests predict little; most tests keep them."""

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
    recipe = load_recipe("mixture", [KEPT, *assignments])
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


@pytest.fixture
def useless(monkeypatch):
    """Return a function that gives a part of a mixture no weight, in the first fit."""

    def without_weight(fit, count, index, log_probs, *arguments, **options):
        weights = fit(log_probs, *arguments, **options)
        if log_probs.shape[1] == count:
            weights = np.ones_like(weights)
            weights[..., index] = 1e-6
        return weights / weights.sum(axis=-1, keepdims=True)

    def patch(index, count):
        for fit in (fit_weights, fit_weights_by_context):
            changed = partial(without_weight, fit, count, index)
            monkeypatch.setattr(f"training.mixture.{fit.__name__}", changed)

    return patch


@pytest.mark.parametrize("assignments", [[], [BY_ORDER], [BY_ORDER, CACHE, "cache.window=50"]])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_part_without_weight_is_left_out(useless, assignments, index):
    names = ["ngram", "lstm", "gru"]
    useless(index, 3)
    whole = mixed([DROPPED, *assignments], *names)
    mixture = whole if whole.model.family == "mixture" else whole.parts[0]
    # the features of the LSTM are those of the cache
    kept = [
        name
        for number, name in enumerate(names)
        if number != index or (name == "lstm" and CACHE in assignments)
    ]
    assert [part.title for part in mixture.parts] == kept
    assert [part.title for part in mixture.unused] == [name for name in names if name not in kept]
    assert len(mixture.model.parts) == len(mixture.facts["weights"]) == len(mixture.part_figures) == len(kept)
    assert bool(mixture.model.weights_by_context) == (BY_ORDER in assignments and index != 0)
    measured = evaluate(whole.model, TEXTS.valid, context=whole.context, progress=SILENT)
    assert measured.facts()["logprob"] == pytest.approx(whole.figures["valid"]["logprob"], rel=1e-4)


def test_a_recipe_keeps_parts_without_weight(useless):
    useless(1, 3)
    whole = mixed([], "ngram", "lstm", "gru")
    assert len(whole.parts) == 3
    assert whole.unused == []


def test_a_weight_in_one_context_is_enough(monkeypatch):
    rows = [[1 - 1e-5, 1e-5]] * families.model("ngram").num_context_lengths
    fitted = {"weights": rows[0], "weights_by_context": [*rows[1:], [0.99, 0.01]]}
    monkeypatch.setattr("training.mixture._fit_weights", lambda *_: fitted)
    assert len(mixed([BY_ORDER, DROPPED], "ngram", "lstm").parts) == 2


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
        (["mixture.kind=static", "mixture.drop_unused=false"], "static mixture is one n-gram model"),
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
    settings = [*SMALL, KEPT, *assignments]
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


@pytest.mark.parametrize(("index", "kept"), [(0, "lstm"), (1, "ngram")])
@pytest.mark.parametrize("cache", ["false", "true"])
def test_a_mixture_of_one_is_published_and_its_unused_part_too(corpus, tmp_path, useless, index, kept, cache):
    useless(index, 2)
    unused = {"lstm": "ngram", "ngram": "lstm"}[kept]
    settings = [f"mixture.cache={cache}", BY_ORDER, DROPPED, "mixture.publish_parts=true"]
    result, checkpoint = trained(corpus, tmp_path, *settings)
    if unused == "lstm" and cache == "true":  # the cache uses its features
        kept, unused = "both", ""
    note = f"{unused} is not part of the model: its weight is below 0.01; mixture.drop_unused=false keeps it"
    assert (note in result["notes"]) == bool(unused)
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["lstm", "m", "ngram"]
    mixture = checkpoint.model.inner if cache == "true" else checkpoint.model
    assert [part.family for part in mixture.parts] == (["ngram", "lstm"] if kept == "both" else [kept])
    with running(Settings(registry=str(tmp_path), models="m", watch_interval_s=0)) as server:
        for path, body in (
            ("next-token", {"context": "the"}),
            ("score", {"texts": ["the cat sat"]}),
            ("autocomplete", {"text": "the c"}),
            ("generate", {"prompt": "the", "max_tokens": 3}),
        ):
            reply = httpx.post(f"{server.url}/v1/{path}", json=body)
            assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(("index", "kept"), [(0, "lstm"), (1, "ngram")])
def test_a_part_that_alone_has_weight_is_published_without_a_mixture(corpus, tmp_path, useless, index, kept):
    useless(index, 2)
    result, checkpoint = trained(corpus, tmp_path, DROPPED)
    assert checkpoint.model.family == kept
    assert not (tmp_path / "m/versions/1/parts").exists()
    assert "parts" not in result
    assert result["valid"]["perplexity"] > 1
    unused = {"lstm": "ngram", "ngram": "lstm"}[kept]
    assert sum(note.startswith(f"{unused} is not part of the model") for note in result["notes"]) == 1


@pytest.mark.parametrize(("weight", "used"), [(0.009, 1), (0.011, 2)])
def test_a_weight_of_a_hundredth_is_needed(monkeypatch, weight, used):
    monkeypatch.setattr("training.mixture._fit_weights", partial(two_weights, weight))
    assert len(mixed([DROPPED], "ngram", "lstm").parts) == used


def two_weights(weight, log_probs, *_):
    return {"weights": [1 - weight, weight] if log_probs.shape[1] == 2 else [1.0]}


@pytest.mark.parametrize("typists", [None, 80])
def test_a_part_is_published_for_more_typists_than_the_mixture_carries(
    corpus, tmp_path, monkeypatch, typists
):
    costs = {"mixture": 4.7, "lstm": 2.2, "ngram": 0.2}  # 20, 40 and 200 typists on each of two cores
    facts = {"keystroke_savings_top_3": 0.4, "words": 9, "timed_keys": 9}
    monkeypatch.setattr(
        "training.purpose.typing_cost",
        lambda model, *_, **__: {"core_ms_per_key": costs[model.family], **facts},
    )
    monkeypatch.setattr("training.purpose.available_cores", lambda: 2.0)
    settings = {"corpus": [corpus], "assignments": [*SMALL, KEPT], "typing": TypingPlan(typists)}
    result = run_train("mixture", name="m", registry=tmp_path, **settings)
    chosen = result["typing"]["chosen"]
    candidates = result["typing"]["candidates"]
    able = [one["name"] for one in candidates if one["typists"] >= (typists or 0)]
    assert (candidates[0]["name"], chosen) == ("mixture", able[0])
    model = load_checkpoint(tmp_path / "m" / "versions" / "1").model
    assert (model.family, (tmp_path / "m/versions/1/parts").exists()) == (chosen, typists is None)
    assert (result["typing"]["reason"] in result["notes"]) == (typists is not None)


def test_the_card_has_the_figures_of_the_parts_within_parts(corpus, tmp_path):
    result, _ = trained(corpus, tmp_path, "mixture.cache=true")
    assert [part["name"] for part in result["parts"][0]["parts"]] == ["ngram", "lstm"]
    card = (tmp_path / "m/versions/1/MODEL_CARD.md").read_text()
    for part in result["parts"][0]["parts"]:
        assert f"| {part['name']} | {part['weight']:.3f} | valid |" in card


def test_the_card_has_the_throughput_of_each_network(corpus, tmp_path, monkeypatch):
    facts = {"tokens_per_second": 3870.0, "expected": 4010.0, "cores": 1.9, "threads": 2}
    monkeypatch.setattr("training.neural.threads.ThreadTuner.facts", lambda _: facts)
    result, _ = trained(corpus, tmp_path, 'mixture.parts=[{recipe="gru"}]')
    assert [part.get("throughput") for part in result["parts"]] == [None, facts, facts]
    card = (tmp_path / "m/versions/1/MODEL_CARD.md").read_text()
    for name in ("lstm", "gru"):
        expected = "3,870 tokens/s in updates on 1.9 cores; about 4,010 expected of 2 idle cores"
        assert f"- throughput of {name}: {expected}" in card


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
