"""Every neural family over HTTP, forward and backward."""

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from service.settings import Settings
from tests import families
from tests.servers import running

TEXT = "w3 w5 w9 w10"


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    """A service with a small model of each kind, and one that reads backward."""
    registry = LocalRegistry(tmp_path_factory.mktemp("networks"), create=True)
    names = {name.replace(" ", "-"): (name, "forward") for name in families.NEURAL}
    for published, (name, direction) in {**names, "backward": ("every option", "backward")}.items():
        description = CheckpointDescription(
            "2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {}, direction=direction
        )
        registry.publish(
            published,
            lambda folder, name=name, about=description: write_checkpoint(
                folder, families.model(name), families.tokenizer(), about
            ),
        )
    with (
        running(Settings(registry=registry.root)) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        yield client


def ask(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("model", [name.replace(" ", "-") for name in families.NEURAL])
def test_every_family_scores_predicts_and_generates(http, model):
    """What it says comes next is what it scores."""
    tokens = ask(http, "/v1/score", texts=[TEXT], detail="token", model=model)["results"][0]["tokens"]
    following = ask(http, "/v1/next-token", context=TEXT, top_k=40, model=model)["results"][0]["candidates"]
    end = next(c["logprob"] for c in following if c["text"] == "</s>")
    assert end == pytest.approx(tokens[-1]["logprob"], abs=1e-5)
    again = ask(http, "/v1/generate", prompt=TEXT, strategy="greedy", max_tokens=4, model=model)
    assert again == ask(http, "/v1/generate", prompt=TEXT, strategy="greedy", max_tokens=4, model=model)


def test_a_backward_network_scores_in_reading_order_and_does_not_continue(http):
    tokens = ask(http, "/v1/score", texts=[TEXT], detail="token", model="backward")["results"][0]["tokens"]
    turned = ask(http, "/v1/score", texts=["w10 w9 w5 w3"], detail="token", model="every-option")
    expected = [token["logprob"] for token in turned["results"][0]["tokens"]]
    assert [t["logprob"] for t in tokens] == pytest.approx([*expected[-2::-1], expected[-1]], abs=1e-5)
    refused = http.post("/v1/generate", json={"prompt": TEXT, "model": "backward"})
    assert refused.status_code == 400
