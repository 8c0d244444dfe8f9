"""Weights that were tuned and saved under a name."""

import pytest

from models.checkpoint.documents import ProfileStore
from models.reranking.ranking import Profile, ProfileModel


@pytest.fixture(scope="module", autouse=True)
def profiles(reranking_registry):
    about = {
        "metric": "wer",
        "signature": "x",
        "decision": "tuned",
        "figures": {},
        "created": "2026-01-01T00:00:00+00:00",
    }
    store = ProfileStore(reranking_registry)
    models = [ProfileModel(name="", address="old@1"), ProfileModel(name="big", address="lstm@1")]
    weights = {"lm": 0.5, "lm:big": 0.2, "rank": 1.0}
    store.write(
        Profile(
            name="tuned", weights=weights, length_exponent=0.5, posterior_scale=2.0, models=models, **about
        )
    )
    store.write(Profile(name="first-pass", weights={"rank": 1.0}, models=[], **about))


def test_a_profile_gives_weights_exponent_scale_and_models(rerank, texts):
    reply = rerank(texts("w3 w5", "w9"), profile="tuned")
    assert (reply["model"], reply["models"]) == ("old@1", {"big": "lstm@1"})
    assert reply["weights"] == {"lm": 0.5, "lm:big": 0.2, "rank": 1.0}
    assert (reply["length_exponent"], reply["posterior_scale"]) == (0.5, 2.0)
    given = {"weights": reply["weights"], "length_exponent": 0.5, "posterior_scale": 2.0, "model": "old"}
    assert reply == rerank(texts("w3 w5", "w9"), models=[{"model": "lstm", "name": "big"}], **given)


def test_what_the_request_says_goes_first(rerank, texts):
    asked = {"weights": {"lm": 1.0}, "length_exponent": 0.0, "posterior_scale": 1.0, "model": "new"}
    reply = rerank(texts("w3 w5", "w9"), profile="tuned", **asked)
    assert reply == rerank(texts("w3 w5", "w9"), **asked)


def test_a_profile_of_the_first_pass_asks_no_model(rerank, texts):
    reply = rerank(texts("w3 w5", "w9"), profile="first-pass")
    assert reply["model"] is None
    assert [c["index"] for c in reply["lists"][0]["ranking"]] == [0, 1]
    assert set(reply["lists"][0]["ranking"][0]["features"]) == {"words", "rank"}


def test_an_unknown_profile_is_refused(refused, texts):
    error = refused(texts("w3"), profile="nosuch")
    assert error["param"] == "profile"
    assert "tuned" in error["message"]
