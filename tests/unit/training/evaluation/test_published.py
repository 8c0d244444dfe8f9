"""Evaluation of published models, and the cost of int8 reported at publication."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from models.checkpoint.load import CheckpointDescription, load_checkpoint
from models.checkpoint.precision import to_int8
from models.checkpoint.registry import LocalRegistry
from models.errors import FormatError, InputError, ModelNotFoundError
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from service.console.evaluation import show_evaluation
from tests.support import families
from training.commands import run_evaluate, run_train
from training.evaluation import breakdown
from training.evaluation.breakdown import COUNTS_FILE, first_sentences, int8_facts
from training.evaluation.evaluate import evaluate
from training.model_card import model_card_files
from training.progress import Progress

pytestmark = pytest.mark.usefixtures("no_pictures")

NOUNS, PLACES = ("cat", "dog", "owl", "hen"), ("mat", "bed", "sofa", "roof")
TRAIN = [f"the {noun} sat on the {place} and slept there" for noun in NOUNS for place in PLACES] * 6
HELD_OUT = ["the cat sat on the roof", "the newt sat on the mat", "owl dog hen sat there"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Registry of n-gram models with equal and different vocabularies, and a backward one."""
    folder = tmp_path_factory.mktemp("evaluation")
    files = {"train.txt": TRAIN, "held-out.txt": HELD_OUT, "other.txt": ["a b c d"] * 30}
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines))
    recipes = {
        "trigram": ("train.txt", ["ngram.order=3"]),
        "unigram": ("train.txt", ["ngram.order=1"]),
        "lower": ("train.txt", ["ngram.order=1", "tokenizer.lowercase=true"]),
        "other": ("other.txt", ["ngram.order=2"]),
        "backward": ("train.txt", ["ngram.order=3", "ngram.direction=backward"]),
    }
    for name, (corpus, settings) in recipes.items():
        given = {"valid": [folder / corpus], "registry": folder, "assignments": settings}
        run_train("ngram", name=name, corpus=[folder / corpus], **given)
    return folder


def evaluate_model(folder, model="trigram", **options):
    fixed = {"registry": folder, "unit": "line", "window": 4, "device": "cpu", "context": "sentence"}
    corpus = [folder / "held-out.txt"]
    return run_evaluate(model, **{"corpus": corpus, **fixed, **options})


@pytest.mark.parametrize("context", ["sentence", "stream", "document"])
def test_details_cover_all_tokens_and_can_be_written_as_json(folder, context):
    result = evaluate_model(folder, context=context, detail=True)
    json.dumps(result, allow_nan=False)
    groups = [groups for name, groups in result["detail"].items() if name.startswith("by_")]
    assert [sum(g["tokens"] for g in own) for own in groups] == [result["tokens"]] * len(groups)
    for own in groups:
        assert math.fsum(g["logprob"] * g["tokens"] for g in own) == pytest.approx(result["logprob"])
    assert result["detail"]["entropy"]["positions"] == result["tokens"]
    assert (
        result["detail"].keys() - {"entropy", "frequency_in", "by_frequency"}
        == {
            "sentence": {"by_position_in_sentence"},
            "stream": {"by_position_in_sentence", "by_position_since_start"},
            "document": {"by_position_since_start"},
        }[context]
    )


def test_frequencies_are_those_of_the_training_text_where_the_checkpoint_knows_them(folder):
    groups = {g["name"]: g["tokens"] for g in evaluate_model(folder, detail=True)["detail"]["by_frequency"]}
    assert groups == {"unknown": 1, "10-99": 12, "100-999": 4, "end of sentence": 3}
    vocabulary = load_checkpoint(folder / "trigram" / "versions" / "1").model.vocabulary
    counts = np.load(folder / "trigram" / "versions" / "1" / COUNTS_FILE)
    assert counts[vocabulary.id_of("the")] == 2 * len(TRAIN)
    assert counts[vocabulary.id_of("cat")] == len(TRAIN) / len(NOUNS)


def test_frequencies_are_those_of_the_evaluated_text_where_it_does_not(folder, monkeypatch):
    monkeypatch.setattr("training.evaluation.breakdown.COUNTS_FILE", "none.npy")
    detail = evaluate_model(folder, detail=True)["detail"]
    assert detail["frequency_in"] == "evaluated text"
    assert {g["name"] for g in detail["by_frequency"]} == {"unknown", "1-9", "end of sentence"}


def test_two_models_are_compared_on_the_same_tokens(folder):
    result = evaluate_model(folder, against="unigram")
    against = result["against"]
    json.dumps(result, allow_nan=False)
    assert (against["model"], against["tokens"], against["oov"]) == ("unigram@1", result["tokens"], 1)
    gain = against["nats_per_token"] - result["nats_per_token"]
    assert against["difference"]["nats_per_token"] == pytest.approx(gain, abs=1e-6)
    assert against["difference"]["low"] < gain < against["difference"]["high"]
    assert against["divergence"]["nats"] > 0
    swapped = evaluate_model(folder, "unigram", against="trigram")["against"]["difference"]
    assert swapped["nats_per_token"] == pytest.approx(-gain, abs=1e-6)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("other", r"same vocabulary; the vocabularies have 17 tokens \(trigram@1\) and 7 tokens \(other@1\)"),
        ("lower", r"trigram@1 and lower@1 split texts differently"),
        ("backward", r"trigram@1 reads forward, but backward@1 reads backward"),
    ],
)
def test_models_that_cannot_be_compared_are_refused_by_name(folder, other, said):
    with pytest.raises(InputError, match=said) as refused:
        evaluate_model(folder, against=other)
    assert refused.value.param == "against"


def test_a_text_that_the_model_was_trained_on_is_found_out(folder):
    train = folder / "train.txt"
    clean, seen = (
        evaluate_model(folder, corpus=[folder / f], overlap=[train]) for f in ("held-out.txt", "train.txt")
    )
    assert (clean["overlap"]["sentences"]["total"], clean["notes"]) == (0, [])
    assert seen["overlap"]["sentences"] == {"total": len(TRAIN), "seen": len(TRAIN), "share": 1.0}
    assert "figures on evaluated text are too optimistic: 100.00% of its sentences" in seen["notes"][0]


def test_training_with_a_seen_validation_text_says_so(folder):
    path = LocalRegistry(folder).resolve("trigram").path
    metrics = json.loads((path / "metrics.json").read_text())
    assert metrics["overlap"]["valid"]["sentences"]["share"] == 1
    card = (path / "MODEL_CARD.md").read_text()
    assert "**Figures on valid are too optimistic: 100.00% of its sentences of 8 words or more" in card
    assert "- overlap of the valid text: 100.00% of its sentences" in card


def test_a_backward_model_has_details_too(folder):
    forward, backward = (evaluate_model(folder, name, detail=True) for name in ("trigram", "backward"))
    positions = [r["detail"]["by_position_in_sentence"] for r in (forward, backward)]
    assert [[g["tokens"] for g in own] for own in positions] == [[3, 3, 6, 8]] * 2


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"sample": 0}, InputError, "--sample is 0; it must be at least 1"),
        ({"against": "nobody"}, ModelNotFoundError, "nobody"),
        ({"overlap": ["none.txt"]}, FormatError, r"none\.txt: there is no such file"),
        ({"corpus": ["empty.txt"]}, FormatError, "is empty"),
        ({"corpus": ["blank.txt"], "context": "document"}, InputError, "no token to predict"),
    ],
)
def test_bad_input_is_named(folder, options, error, said):
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text("\n")
    for key in ("overlap", "corpus"):
        if key in options:
            options = {**options, key: [folder / name for name in options[key]]}
    with pytest.raises(error, match=said):
        evaluate_model(folder, **options)


def test_people_get_a_table(folder, capsys):
    asked = {"detail": True, "against": "unigram", "overlap": [folder / "train.txt"]}
    show_evaluation(evaluate_model(folder, context="stream", **asked))
    out = capsys.readouterr().out
    for said in (
        "cross-entropy (nats per token)",
        "occurrences in the training text",
        "100-999",
        "position in the sentence",
        "position since the start",
        "entropy of the predictions: ",
        "trigram@1 is better than unigram@1 by ",
        "KL(trigram@1 ‖ unigram@1): ",
        "train.txt contains",
        "stream context; unknown tokens have the probability p(<unk>)",
    ):
        assert said in out.replace("\n", " ")


@pytest.mark.parametrize("context", ["sentence", "stream"])
def test_the_cost_is_that_of_the_perplexities_on_the_same_text(context):
    model, text = families.model("lstm"), families.corpus(60)
    facts = int8_facts(model, text, context=context, progress=Progress())["int8"]
    single, integers = (
        evaluate(one, text, context=context, progress=Progress()).perplexity
        for one in (model, to_int8(model))
    )
    assert (facts["perplexity_float32"], facts["perplexity"]) == (single, integers)
    assert facts["cost"] == pytest.approx(integers / single - 1)
    assert facts["default"] is (facts["cost"] <= 0.005)
    assert facts["tokens"] == text.num_tokens


def test_models_without_a_network_have_nothing_to_tell():
    assert (
        int8_facts(families.model("ngram"), families.corpus(), context="sentence", progress=Progress()) == {}
    )


def test_int8_problems_are_reported_instead_of_figures():
    vocabulary = families.tokenizer().vocabulary
    config = NetworkConfig(cell="feed-forward", window=64, embedding_size=2049, hidden_size=8)
    model = NeuralModel(Network(config, len(vocabulary)), vocabulary)
    facts = int8_facts(model, families.corpus(), context="sentence", progress=Progress())
    assert facts == {
        "int8": {"problems": ["int8 supports layer inputs of up to 131072 numbers, given 131136"]}
    }


def test_a_cost_too_high_is_told_and_int8_is_not_the_default(monkeypatch):
    monkeypatch.setattr(breakdown, "MAX_INT8_COST", -1.0)
    facts = int8_facts(families.model("lstm"), families.corpus(20), context="sentence", progress=Progress())
    assert facts["int8"]["default"] is False
    assert "int8 is not the default on a CPU" in card_with(facts)


def test_the_card_tells_both_perplexities():
    facts = {"tokens": 20_000, "perplexity": 60.3, "perplexity_float32": 60.0, "cost": 0.005, "default": True}
    card = card_with({"int8": facts})
    assert "is 60.30 instead of 60.00 (+0.50%): int8 is the default" in card


def card_with(metrics):
    model = SimpleNamespace(family="lstm", num_parameters=1, vocabulary=range(1))
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", metrics, {}, [], {})
    return model_card_files("m", model, "word", description, {})["MODEL_CARD.md"].decode()


@pytest.mark.parametrize(("tokens", "sentences"), [(0, 1), (5, 1), (10, 2), (1_000_000, 400)])
def test_the_beginning_of_a_text_is_whole_sentences(tokens, sentences):
    text = families.corpus()
    assert len(text.sentence(0)) + len(text.sentence(1)) + 2 > 10 or sentences != 2
    some = first_sentences(
        text, tokens if sentences != 2 else len(text.sentence(0)) + len(text.sentence(1)) + 2
    )
    assert some.num_sentences == sentences
    assert (some.tokens == text.tokens[: len(some.tokens)]).all()
    assert np.array_equal(some.offsets, text.offsets[: sentences + 1])
