"""What only n-gram models do over HTTP: candidates without the whole distribution, reading backward."""

import httpx
import numpy as np
import pytest

from models.checkpoint.registry import LocalRegistry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.vocabulary import EOS
from service.settings import Settings
from tests import families
from tests.servers import running
from training.ngram.estimate import estimate
from training.progress import Silent

TEXT = "w3 w5 w9 w10"


def backward_model():
    return estimate(
        families.corpus().reversed(), families.tokenizer().vocabulary, order=3, progress=Silent()
    ).model


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    """A service with the same text's model read forward and backward."""
    registry = LocalRegistry(tmp_path_factory.mktemp("ngrams"), create=True)
    for name, model in {"forward": families.model("ngram"), "backward": backward_model()}.items():
        description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {}, direction=name)
        registry.publish(
            name,
            lambda folder, model=model, about=description: write_checkpoint(
                folder, model, families.tokenizer(), about
            ),
        )
    with (
        running(Settings(registry=registry.root)) as server,
        httpx.Client(base_url=server.url, timeout=10) as client,
    ):
        yield client


def ask(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("top_k", [1, 5, 40])
def test_candidates_are_the_same_without_the_entropy(http, top_k):
    asked = {"context": ["", TEXT, "w36"], "top_k": top_k, "model": "forward"}
    whole = ask(http, "/v1/next-token", **asked)["results"]
    quick = ask(http, "/v1/next-token", **asked, entropy=False)["results"]
    assert all(result["entropy_bits"] > 0 for result in whole)
    assert quick == [result | {"entropy_bits": None} for result in whole]


def test_a_backward_model_scores_the_reversed_text_in_reading_order(http):
    reply = ask(http, "/v1/score", texts=[TEXT], detail="token", model="backward")
    ids = families.tokenizer().encode(TEXT)
    model = backward_model()
    scores = model.score(model.initial_state(1), np.array([[*ids[::-1], EOS]]), np.array([len(ids) + 1]))[0]
    tokens = reply["results"][0]["tokens"]
    assert [token["id"] for token in tokens] == [*ids, EOS]
    assert [token["logprob"] for token in tokens] == pytest.approx([*scores[-2::-1], scores[-1]], abs=1e-6)


def test_a_backward_model_scores_without_an_end_mark(http):
    whole = ask(http, "/v1/score", texts=[TEXT], detail="token", model="backward")["results"][0]["tokens"]
    open_ended = ask(http, "/v1/score", texts=[TEXT], detail="token", eos=False, model="backward")
    assert open_ended["results"][0]["tokens"] == whole[:-1]


def test_a_backward_model_re_ranks(http):
    texts = [TEXT, "w10 w9 w5 w3", "w3"]
    scores = ask(http, "/v1/score", texts=texts, model="backward")["results"]
    candidates = [{"text": text} for text in texts]
    reply = ask(http, "/v1/rerank", lists=[{"candidates": candidates}], model="backward")
    ranking = reply["lists"][0]["ranking"]
    best = max(range(3), key=lambda i: scores[i]["logprob"])
    assert ranking[0]["index"] == best
    assert ranking[0]["features"]["lm"] == pytest.approx(scores[best]["logprob"], abs=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/next-token", {"context": "w3"}, "model"),
        ("/v1/generate", {"prompt": "w3"}, "model"),
        ("/v1/score", {"texts": ["w3"], "context": "w4 "}, "context"),
        ("/v1/rerank", {"lists": [{"context": "w4", "candidates": [{"text": "w3"}]}]}, "context"),
    ],
)
def test_what_comes_next_is_not_asked_of_a_backward_model(http, path, body, param):
    response = http.post(path, json={**body, "model": "backward"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", param)
    assert "backward@1 reads from right to left" in error["message"]
