"""Networks served in int8: what a text scores never depends on company, and everybody is told."""

import pytest

from models.checkpoint.load import load_checkpoint
from service.client import Client
from service.settings import Settings
from tests.servers import running
from training.commands import run_evaluate, run_train

TRAIN = [
    f"the {noun} sat on the {place}" for noun in ("cat", "dog", "owl") for place in ("mat", "bed", "roof")
]
TEXTS = ["the cat sat on the roof", "an owl", ".", "roof mat bed the the cat sat sat on", "zzz"] * 4
SETTINGS = ("tokenizer.kind=char", "neural.hidden_size=29", "neural.embedding_size=24", "train.max_steps=8")


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A tiny LSTM, and its mixture with an n-gram model."""
    folder = tmp_path_factory.mktemp("precision")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(TRAIN * 20))
    small = ("train.batch_size=4", "train.bptt_length=8")
    run_train("lstm", name="lstm", registry=folder, corpus=[corpus], assignments=[*SETTINGS, *small])
    run_train("ngram", name="ngram", registry=folder, corpus=[corpus], assignments=["tokenizer.kind=char"])
    return folder


@pytest.fixture(scope="module")
def served(registry):
    with running(Settings(registry=registry, precision="int8")) as server, Client(server.url) as client:
        yield client


def test_publishing_measures_what_int8_costs(registry):
    checkpoint = load_checkpoint(registry / "lstm" / "versions" / "1")
    measured = checkpoint.metrics["int8"]
    assert measured["perplexity"] == pytest.approx(measured["perplexity_float32"], rel=0.02)
    assert checkpoint.precision == ("int8" if measured["default"] else "float32")
    assert "In int8, the perplexity per token" in (checkpoint.path / "MODEL_CARD.md").read_text()


def test_the_list_of_models_tells_the_precision(served):
    told = {model.id: model.precision for model in served.models().data}
    assert told == {"lstm@1": "int8", "ngram@1": "float32"}


def test_a_text_scores_the_same_alone_and_with_others_to_the_last_bit(served):
    together = served.score(TEXTS, model="lstm").results
    alone = [served.score([text], model="lstm").results[0] for text in TEXTS]
    assert [result.logprob for result in together] == [result.logprob for result in alone]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_evaluation_tells_the_precision_it_computed_in(registry, tmp_path, precision):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    result = run_evaluate(
        "lstm",
        corpus=[tmp_path / "text.txt"],
        registry=registry,
        context="sentence",
        unit="line",
        window=100,
        device="cpu",
        precision=precision,
    )
    assert result["precision"] == precision
