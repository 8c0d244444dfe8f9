"""Weight profiles over HTTP: use in re-ranking, storage and removal by administrators."""

import httpx
import numpy as np
import pytest

from models.checkpoint.documents import ProfileStore
from models.phrases import Phrase
from models.reranking.ranking import Profile, ProfileModel
from service.api_keys import create_key
from service.settings import Settings
from tests.support.nbest_lists import made_lists, without_references
from tests.support.services import running


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
    store.write(Profile(name="modelless", weights={"rank": 1.0, "lm": 0.5}, models=[], **about))


def test_a_profile_gives_weights_exponent_scale_and_models(rerank, texts):
    reply = rerank(texts("w3 w5", "w9"), profile="tuned")
    assert (reply["model"], reply["models"]) == ("old@1", {"big": "lstm@1"})
    assert reply["weights"] == {"lm": 0.5, "lm:big": 0.2, "rank": 1.0}
    assert (reply["length_exponent"], reply["posterior_scale"]) == (0.5, 2.0)
    given = {"weights": reply["weights"], "length_exponent": 0.5, "posterior_scale": 2.0, "model": "old"}
    assert reply == rerank(texts("w3 w5", "w9"), models=[{"model": "lstm", "name": "big"}], **given)


def test_a_profile_stores_phrases_and_those_of_the_request_replace_them(rerank, texts, reranking_registry):
    profile = ProfileStore(reranking_registry).read("modelless")
    phrases = [Phrase.model_validate({"text": "Zzz", "class": "name"})]
    weights = {"lm": 1.0, "phrases:name": 3.0}
    ProfileStore(reranking_registry).write(
        profile.model_copy(update={"name": "names", "phrases": phrases, "weights": weights})
    )
    ranked = rerank(texts("w3 zzz", "w9"), profile="names", model="new")["lists"][0]["ranking"]
    assert [c["features"].get("phrases:name") for c in ranked] == [1.0, 0.0]
    replaced = rerank(texts("w3 zzz", "w9"), profile="names", model="new", phrases=[])["lists"][0]["ranking"]
    assert not any("phrases:name" in c["features"] for c in replaced)


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


QUICK = {"restarts": 1, "resamples": 4, "bootstrap_samples": 200}
ABOUT = {"weights": {"rank": 1.0}}


@pytest.fixture(scope="module")
def clients(reranking_registry):
    """Return a client with administration rights, and one without."""
    keys = [create_key("operator", ["admin", "infer"]), create_key("caller", ["infer"])]
    settings = Settings(
        registry=reranking_registry, models=("new",), api_keys=tuple(one.key.line for one in keys)
    )
    with running(settings) as server:
        opened = [
            httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {one.secret}"}, timeout=20)
            for one in keys
        ]
        yield opened
        for client in opened:
            client.close()


@pytest.fixture(scope="module")
def admin(clients):
    return clients[0]


@pytest.fixture(scope="module")
def caller(clients):
    return clients[1]


def test_a_profile_whose_weights_need_a_model_that_it_does_not_name_is_refused(rerank, refused, texts):
    error = refused(texts("w3"), profile="modelless")
    assert error["param"] == "weights.lm"
    assert "name one in `model`" in error["message"]
    assert rerank(texts("w3"), profile="modelless", model="old")["model"] == "old@1"


def test_a_stored_profile_chooses_what_was_tuned(admin, caller):
    asked = {"lists": made_lists(), "features": ["good", "lm", "words"], **QUICK}
    reply = caller.post("/v1/rerank/tune", json=asked).json()
    assert admin.put("/admin/profiles/contract", json=reply["profile"]).json() == {"profile": "contract"}
    fresh = made_lists(seed=1)
    body = {"lists": without_references(fresh), "profile": "contract"}
    ranked = caller.post("/v1/rerank", json=body).json()
    assert (ranked["weights"], ranked["posterior_scale"]) == (reply["weights"], reply["posterior_scale"])
    best = [one["ranking"][0]["text"] for one in ranked["lists"]]
    assert np.mean([text == given["reference"] for text, given in zip(best, fresh, strict=True)]) > 0.9


def test_profiles_are_listed_read_and_removed(admin):
    admin.put("/admin/profiles/short-lived", json={**ABOUT, "figures": {"baseline": 15.44}})
    assert "short-lived" in admin.get("/admin/profiles").json()["profiles"]
    assert admin.get("/admin/profiles/short-lived").json()["figures"] == {"baseline": 15.44}
    admin.delete("/admin/profiles/short-lived")
    assert "short-lived" not in admin.get("/admin/profiles").json()["profiles"]
    assert admin.get("/admin/profiles/short-lived").status_code == 400


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_who_may_only_ask_may_not_touch_profiles(caller, method):
    assert caller.request(method, "/admin/profiles/contract", json=ABOUT).status_code == 403


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"weights": {}}, "weights"),
        ({"weights": {"lm": 1e9}}, "weights.lm"),
        ({**ABOUT, "name": "x"}, "name"),
        ({**ABOUT, "posterior_scale": -1.0}, "posterior_scale"),
    ],
)
def test_a_profile_that_is_none_is_refused(admin, body, param):
    response = admin.put("/admin/profiles/wrong", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
