"""Weight profiles over HTTP: use in re-ranking, storage and removal by administrators."""

import json

import httpx
import numpy as np
import pytest

from models.phrases import Phrase
from models.reranking.ranking import Profile, ProfileModel, ProfileStore
from service.api_keys import create_key
from service.settings import Settings
from tests.support.nbest_lists import made_lists, misheard, without_references
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


def test_options_of_the_request_override_the_profile(rerank, texts):
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


CORRECTIONS = {
    "weights": {"good": 1.0, "rank": 0.5, "correction": 1.0},
    "corrections": [
        {"heard": "wone", "written": "w1", "log_odds": 2.0},
        {"heard": "wone", "written": "", "log_odds": -3.0},
        {"heard": "double u2", "written": "w2", "log_odds": 3.0, "lists": 7},
    ],
}


@pytest.fixture(scope="module")
def corrected(admin):
    admin.put("/admin/profiles/corrections", json=CORRECTIONS)
    candidates = [
        {"text": "w3 wone", "features": {"good": 1.0}},
        {"text": "w3 double u2", "features": {"good": 0.5}},
        {"text": "w3 double u2", "features": {"good": 0.25}},
    ]
    return {"profile": "corrections", "lists": [{"candidates": candidates}]}


def test_corrected_candidates_are_ranked_with_the_features_of_their_origin(caller, corrected):
    reply = caller.post("/v1/rerank", json=corrected).json()
    (ranked,) = reply["lists"]
    assert ranked["unchanged"] is False
    told = [(one["index"], one["text"], one["total"], one.get("corrections")) for one in ranked["ranking"]]
    by_text = {one["text"]: one["posterior"] for one in ranked["ranking"]}
    end, common = len("w3 double u2"), {"start": len("w3 "), "proposer": "corrections"}
    joined = {
        **common,
        "end": len("w3 wone"),
        "heard": "wone",
        "written": "w1",
        "posterior": by_text["w3 w1"],
    }
    split = {**common, "end": end, "heard": "double u2", "written": "w2", "posterior": by_text["w3 w2"]}
    assert told[:3] == [
        (0, "w3 w1", 3.0, [joined]),
        (1, "w3 w2", 3.0, [split]),
        (0, "w3 wone", 1.0, None),
    ]
    assert ranked["ranking"][0]["features"] == {"good": 1.0, "rank": 0.0, "words": 2.0, "correction": 2.0}
    assert sum(one["posterior"] for one in ranked["ranking"]) == pytest.approx(1.0)


def test_lists_in_one_request_and_alone_are_corrected_equally(caller, corrected):
    lists = [*corrected["lists"], {"candidates": [{"text": "w4", "features": {"good": 0.0}}]}]
    both = caller.post("/v1/rerank", json={**corrected, "lists": lists}).json()["lists"]
    lines = "\n".join(map(json.dumps, lists))
    streamed = caller.post(
        "/v1/rerank?profile=corrections", content=lines, headers={"content-type": "application/x-ndjson"}
    )
    assert [json.loads(line) for line in streamed.text.splitlines()] == both
    assert [
        caller.post("/v1/rerank", json={**corrected, "lists": [one]}).json()["lists"][0] for one in lists
    ] == both


def test_without_duplicates_corrected_candidates_tell_the_index_of_the_request(caller, corrected):
    reply = caller.post("/v1/rerank", json={**corrected, "drop_duplicates": True}).json()
    told = [(one["index"], one["text"]) for one in reply["lists"][0]["ranking"]]
    assert sorted(told) == [(0, "w3"), (0, "w3 w1"), (0, "w3 wone"), (1, "w3 double u2"), (1, "w3 w2")]


def test_corrections_that_were_tuned_are_made(admin, caller):
    asked = {"lists": misheard(made_lists(80)), "corrections": True, "given_only": True, **QUICK}
    reply = caller.post("/v1/rerank/tune", json=asked).json()
    admin.put("/admin/profiles/tuned-corrections", json=reply["profile"])
    fresh = made_lists(seed=1)
    rights = [one["reference"] for one in fresh]
    body = {"lists": without_references(misheard(fresh)), "profile": "tuned-corrections", "top": 1}
    ranked = caller.post("/v1/rerank", json=body).json()
    best = [one["ranking"][0]["text"] for one in ranked["lists"]]
    assert np.mean([text == right for text, right in zip(best, rights, strict=True)]) > 0.8


def test_the_feature_of_corrections_cannot_be_given(caller):
    lists = [{"candidates": [{"text": "w1", "features": {"correction": 1.0}}]}]
    error = caller.post("/v1/rerank", json={"lists": lists}).json()["error"]
    assert error["param"] == "lists[0].candidates[0].features.correction"


def test_profiles_are_listed_read_and_removed(admin):
    admin.put("/admin/profiles/short-lived", json={**ABOUT, "figures": {"baseline": 15.44}})
    assert "short-lived" in admin.get("/admin/profiles").json()["profiles"]
    assert admin.get("/admin/profiles/short-lived").json()["figures"] == {"baseline": 15.44}
    admin.delete("/admin/profiles/short-lived")
    assert "short-lived" not in admin.get("/admin/profiles").json()["profiles"]
    assert admin.get("/admin/profiles/short-lived").status_code == 400


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_inference_key_cannot_access_profiles(caller, method):
    assert caller.request(method, "/admin/profiles/contract", json=ABOUT).status_code == 403


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"weights": {}}, "weights"),
        ({"weights": {"lm": 1e9}}, "weights.lm"),
        ({**ABOUT, "name": "x"}, "name"),
        ({**ABOUT, "posterior_scale": -1.0}, "posterior_scale"),
        ({**ABOUT, "corrections": [{"heard": "a", "written": "b"}]}, "corrections[0].log_odds"),
        (
            {**ABOUT, "corrections": [{"heard": "a b c d e", "written": "b", "log_odds": 1.0}]},
            "corrections[0].heard",
        ),
    ],
)
def test_a_profile_that_is_none_is_refused(admin, body, param):
    response = admin.put("/admin/profiles/wrong", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
