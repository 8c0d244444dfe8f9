"""Administration of a service of two workers: what one is told, both do."""

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from service.api_keys import create_key
from tests.contract.conftest import publish
from tests.fakes import FakeModel, fake_vocabulary
from tests.workers import running_workers, wait_for

SCORE = {"texts": ["the cat sat"]}


@pytest.fixture(scope="module")
def registry(fake_family, tmp_path_factory):
    """`main` and `twin` with two versions of which the first is the champion, `other` with one."""
    registry = LocalRegistry(tmp_path_factory.mktemp("admin") / "registry", create=True)
    words = WordTokenizer(fake_vocabulary())
    for seed, name in enumerate(("main", "main", "twin", "twin", "other", "later")):
        publish(registry, name, FakeModel(words.vocabulary, seed=seed, endless=True), words)
    registry.set_alias("main", "champion", 1)
    registry.set_alias("twin", "champion", 1)
    return registry


@pytest.fixture(scope="module")
def key():
    return create_key("operator", ["admin", "infer", "metrics"])


@pytest.fixture(scope="module")
def workers(registry, tmp_path_factory, key):
    settings = {
        "GRAMOPHONE_MODELS": "main,twin",
        "GRAMOPHONE_WATCH_INTERVAL_S": "0",
        "GRAMOPHONE_API_KEYS": key.key.line,
    }
    headers = {"authorization": f"Bearer {key.secret}"}
    with running_workers(registry, tmp_path_factory.mktemp("admin"), headers, **settings) as two:
        yield two


@pytest.fixture(scope="module")
def clients(workers):
    return [workers.client(number) for number in (0, 1)]


def served(clients, model):
    return [client.post("/v1/score", json={**SCORE, "model": model}).status_code for client in clients]


def test_a_model_is_loaded_and_unloaded_by_both(clients):
    assert served(clients, "other") == [404, 404]
    loaded = clients[0].post("/admin/models/load", json={"model": "other", "wait": True})
    assert (loaded.status_code, loaded.json()["state"]) == (200, "loaded")
    assert served(clients, "other") == [200, 200]
    assert clients[1].post("/admin/models/unload", json={"model": "other"}).status_code == 200
    assert served(clients, "other") == [404, 404]


def test_an_alias_moved_at_one_is_followed_by_both(clients):
    moved = clients[1].put("/admin/models/main/aliases/champion", json={"version": 2, "wait": True})
    assert moved.json()["serving"] == "main@2"
    models = [client.post("/v1/score", json={**SCORE, "model": "main"}).json()["model"] for client in clients]
    assert models == ["main@2", "main@2"]


def test_an_alias_that_is_taken_away_is_taken_away_once(clients):
    assert clients[0].delete("/admin/models/twin/aliases/champion").json()["previous"] == 1
    assert clients[1].delete("/admin/models/twin/aliases/champion").status_code == 404


def test_a_body_that_nobody_asked_for_does_not_spoil_an_answer(clients):
    clients[0].put("/admin/models/main/aliases/old", json={"version": 1})
    gone = clients[0].request("DELETE", "/admin/models/main/aliases/old", content=b"nothing to read")
    assert (gone.status_code, gone.json()["previous"]) == (200, 1)


@pytest.mark.parametrize("name", ["a%00b", "%2e%2e", 300 * "x"])
def test_what_can_be_no_model_has_no_aliases(clients, name):
    answer = clients[0].put(f"/admin/models/{name}/aliases/new", json={"version": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_what_is_wrong_is_refused_as_by_a_lone_process(clients):
    answer = clients[0].post("/admin/models/load", json={"model": "nothing"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "worker" not in answer.text


def test_nobody_without_the_key_changes_anything_anywhere(workers):
    answer = httpx.post(f"{workers.url}/admin/models/load", json={"model": "other"})
    assert answer.status_code == 401


def test_both_log_a_change_with_the_id_of_the_request(workers, clients):
    clients[0].post("/admin/models/load", json={"model": "later"}, headers={"x-request-id": "a-change"})
    wait_for(
        lambda: {line["worker"] for line in workers.lines() if line.get("request_id") == "a-change"} == {0, 1}
    )


def test_a_version_published_later_is_served_by_both(registry, tmp_path):
    settings = {"GRAMOPHONE_MODELS": "other", "GRAMOPHONE_WATCH_INTERVAL_S": "0.2"}
    with running_workers(registry, tmp_path, **settings) as two:
        clients = [two.client(number) for number in (0, 1)]
        words = WordTokenizer(fake_vocabulary())
        publish(registry, "other", FakeModel(words.vocabulary, seed=9), words)
        wait_for(
            lambda: (
                [client.post("/v1/score", json=SCORE).json()["model"] for client in clients]
                == ["other@2"] * 2
            )
        )
