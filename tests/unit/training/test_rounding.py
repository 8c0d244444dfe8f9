"""What int8 costs, as told when a model is published."""

import numpy as np
import pytest

from models.checkpoint.precision import to_int8
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from tests import families
from training.evaluation import published
from training.evaluation.evaluate import evaluate
from training.evaluation.published import first_sentences, int8_facts
from training.model_card import CardData, model_card_files
from training.progress import Silent


@pytest.mark.parametrize("context", ["sentence", "stream"])
def test_the_cost_is_that_of_the_perplexities_on_the_same_text(context):
    model, text = families.model("lstm"), families.corpus(60)
    facts = int8_facts(model, text, context=context, progress=Silent())["int8"]
    single, integers = (
        evaluate(one, text, context=context, progress=Silent()).perplexity for one in (model, to_int8(model))
    )
    assert (facts["perplexity_float32"], facts["perplexity"]) == (single, integers)
    assert facts["cost"] == pytest.approx(integers / single - 1)
    assert facts["default"] is (facts["cost"] <= 0.005)
    assert facts["tokens"] == text.num_tokens


def test_models_without_a_network_have_nothing_to_tell():
    assert int8_facts(families.model("ngram"), families.corpus(), context="sentence", progress=Silent()) == {}


def test_what_integers_cannot_compute_is_told_instead():
    vocabulary = families.tokenizer().vocabulary
    config = NetworkConfig(embedding_size=8, hidden_size=8, attention="multiplicative")
    model = NeuralModel(Network(config, len(vocabulary)), vocabulary)
    facts = int8_facts(model, families.corpus(), context="sentence", progress=Silent())
    assert facts == {"int8": {"problems": ["int8 knows no attention = 'multiplicative'"]}}


def test_a_cost_too_high_is_told_and_int8_is_not_the_default(monkeypatch):
    monkeypatch.setattr(published, "MAX_COST", -1.0)
    facts = int8_facts(families.model("lstm"), families.corpus(20), context="sentence", progress=Silent())
    assert facts["int8"]["default"] is False
    assert "int8 is not the default on a CPU" in card_with(facts)


def test_the_card_tells_both_perplexities():
    facts = {"tokens": 20_000, "perplexity": 60.3, "perplexity_float32": 60.0, "cost": 0.005, "default": True}
    card = card_with({"int8": facts})
    assert "is 60.30 instead of 60.00 (+0.50%): int8 is the default" in card


def card_with(metrics):
    data = CardData("m", "lstm", "2026-01-01T00:00:00+00:00", 1, 1, "word", metrics, {}, {})
    return model_card_files(data)["MODEL_CARD.md"].decode()


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
