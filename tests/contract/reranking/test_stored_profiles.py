"""Profiles over HTTP: stored by who administers, used by whoever re-ranks."""

import httpx
import numpy as np
import pytest

from service.api_keys import create_key
from service.settings import Settings
from tests.servers import running
from tests.tuning_requests import made_lists, without_references

QUICK = {"restarts": 1, "resamples": 4, "bootstrap_samples": 200}
ABOUT = {"weights": {"rank": 1.0}}


@pytest.fixture(scope="module")
def clients(reranking_registry):
    """One who administers, and one who asks."""
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
