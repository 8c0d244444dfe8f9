"""Unnormalised scores in re-ranking over HTTP."""

import httpx
import pytest
import torch

from models.checkpoint.registry import LocalRegistry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.language_model import pad_sequences
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.vocabulary import EOS
from service.settings import Settings
from tests import families
from tests.servers import running

TEXTS = ["w3 w5 w9", "w1", "w20 w21"]
LISTS = [{"candidates": [{"text": text} for text in TEXTS]}]


def small_model(*, self_normalised):
    torch.manual_seed(3)
    config = NetworkConfig(embedding_size=13, hidden_size=17, self_normalised=self_normalised)
    vocabulary = families.tokenizer().vocabulary
    return NeuralModel(Network(config, len(vocabulary)), vocabulary)


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    """A service with a self-normalised model and one that is not."""
    registry = LocalRegistry(tmp_path_factory.mktemp("modes"), create=True)
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
    for name in ("pulled", "free"):
        model = small_model(self_normalised=name == "pulled")
        registry.publish(
            name,
            lambda folder, model=model: write_checkpoint(folder, model, families.tokenizer(), about),
        )
    with (
        running(Settings(registry=registry.root)) as server,
        httpx.Client(base_url=server.url, timeout=10) as client,
    ):
        yield client


def told(http, mode, model="pulled"):
    response = http.post("/v1/rerank", json={"lists": LISTS, "model": model, "score_mode": mode})
    assert response.status_code == 200, response.text
    ranking = response.json()["lists"][0]["ranking"]
    return [c["features"]["lm"] for c in sorted(ranking, key=lambda c: c["index"])]


def test_unnormalised_scores_are_sums_of_logits(http):
    model = small_model(self_normalised=True)
    ids = [[*map(model.vocabulary.id_of, text.split()), EOS] for text in TEXTS]
    want = model.score_unnormalised(model.initial_state(3), *pad_sequences(ids)).sum(1)
    assert told(http, "unnormalised") == pytest.approx(want.tolist(), rel=0.02)
    assert told(http, "normalised") != pytest.approx(want.tolist(), rel=0.02)


def test_normalised_is_the_default(http):
    ranking = http.post("/v1/rerank", json={"lists": LISTS, "model": "pulled"}).json()["lists"][0]["ranking"]
    assert {c["features"]["lm"] for c in ranking} == set(told(http, "normalised"))


def test_a_model_that_was_not_trained_for_it_refuses(http):
    response = http.post("/v1/rerank", json={"lists": LISTS, "model": "free", "score_mode": "unnormalised"})
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("unsupported_parameter", "score_mode")
    assert "model free@1 was not trained for unnormalised scores" in error["message"]


def test_another_mode_is_refused(http):
    response = http.post("/v1/rerank", json={"lists": LISTS, "score_mode": "fast"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "score_mode"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score", {"texts": ["w1"]}),
        ("/v1/next-token", {"context": "w1"}),
        ("/v1/generate", {"prompt": "w1"}),
    ],
)
def test_endpoints_that_report_probabilities_do_not_offer_it(http, path, body):
    response = http.post(path, json={"model": "pulled", "score_mode": "unnormalised", **body})
    assert response.status_code == 400
    assert "score_mode" in response.text
