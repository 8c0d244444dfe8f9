"""Administering models over HTTP: permissions, replies, loading, unloading, aliases."""

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from models.checkpoint import stores
from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from service.api_keys import create_key
from service.app import create_app
from service.settings import Settings
from tests.contract.conftest import publish
from tests.support.checkpoints import damage
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.services import running, serving


@pytest.fixture
def registry(fake_family, tmp_path):
    """Create `main` with two versions, the first the champion, and `other` and `damaged` with one each."""
    registry = LocalRegistry(tmp_path)
    words = WordTokenizer(fake_vocabulary())
    for name, seed in (("main", 1), ("main", 2), ("other", 3), ("damaged", 4)):
        version = publish(registry, name, FakeModel(words.vocabulary, seed=seed, endless=True), words)
    damage(version)
    registry.set_alias("main", "champion", 1)
    return registry


@pytest.fixture
def admin_key():
    return create_key("operator", ["admin", "infer", "metrics"])


@pytest.fixture
def started(registry, admin_key):
    settings = Settings(
        registry=registry.root, models=("main",), api_keys=(admin_key.key.line,), watch_interval_s=0
    )
    with running(settings) as server:
        yield server


@pytest.fixture
def admin(started, admin_key):
    headers = {"authorization": f"Bearer {admin_key.secret}"}
    with httpx.Client(base_url=started.url, headers=headers, timeout=20) as client:
        yield client


def rows(admin):
    return {row["id"]: row for row in admin.get("/admin/models").json()["data"]}


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not come about")


def test_without_a_key_there_is_no_administration(started):
    assert httpx.get(f"{started.url}/admin/models").status_code == 401
    assert httpx.post(f"{started.url}/admin/models/load", json={"model": "other"}).status_code == 401


def test_everything_published_and_hosted_is_listed(admin):
    listed = rows(admin)
    assert {address: row["state"] for address, row in listed.items()} == {
        "damaged@1": "published",
        "main@1": "loaded",
        "main@2": "published",
        "other@1": "published",
    }
    main = listed["main@1"]
    assert (main["is_default"], main["aliases"], main["serves"]) == (True, ["champion"], ["main"])
    assert main["memory"]["own_bytes"] > 0
    assert main["load_seconds"] >= main["warm_up_seconds"] > 0
    assert (main["requests_in_flight"], main["last_used"]) == (0, None)


def test_a_load_is_waited_for_if_so_wished(admin):
    answer = admin.post("/admin/models/load", json={"model": "main@2", "wait": True})
    assert (answer.status_code, answer.json()["state"]) == (200, "loaded")
    assert admin.post("/v1/score", json={"texts": ["a cat"], "model": "main@2"}).json()["model"] == "main@2"
    again = admin.post("/admin/models/load", json={"model": "main@2"})
    assert (again.status_code, again.json()["state"]) == (200, "loaded")


def test_a_request_is_counted_while_it_lasts(admin):
    assert admin.post("/v1/score", json={"texts": ["a cat"]}).status_code == 200
    main = rows(admin)["main@1"]
    assert main["requests_in_flight"] == 0
    assert time.time() - 60 < main["last_used"] <= time.time()


def test_ready_waits_for_every_model_that_was_named(registry, monkeypatch):
    gate, app = threading.Event(), create_app(Settings(registry=registry.root, models=("main", "other")))
    loader = app.state.services.host._loader
    read = loader.read

    def waiting(path, **options):
        assert "main" in path.parts or gate.wait(10)
        return read(path, **options)

    monkeypatch.setattr(loader, "read", waiting)
    with serving(app) as url:
        wait_for(lambda: httpx.post(f"{url}/v1/score", json={"texts": ["a"]}).status_code == 200)
        answer = httpx.get(f"{url}/health/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "loading")
        gate.set()
        wait_for(lambda: httpx.get(f"{url}/health/ready").status_code == 200)


def test_a_load_goes_on_behind_the_answer_and_requests_go_on_meanwhile(started, admin, monkeypatch):
    gate, loader = threading.Event(), started.app.state.services.host._loader
    read = loader.read
    monkeypatch.setattr(loader, "read", lambda *a, **k: (gate.wait(10), read(*a, **k))[1])
    answer = admin.post("/admin/models/load", json={"model": "other"})
    assert (answer.status_code, answer.json()["state"]) == (202, "loading")
    wait_for(lambda: rows(admin)["other@1"]["state"] == "loading")
    assert admin.get("/admin/models").json()["queued"] == ["other"]
    assert admin.post("/v1/score", json={"texts": ["a cat"]}).status_code == 200
    assert admin.get("/health/ready").status_code == 200
    gate.set()
    wait_for(lambda: rows(admin)["other@1"]["state"] == "loaded")
    assert admin.get("/admin/models").json()["queued"] == []


def test_three_loads_at_once_are_done_one_after_the_other(started, admin, monkeypatch):
    loader, under_way, most = started.app.state.services.host._loader, [], []
    read = loader.read

    def slowly(path, **options):
        under_way.append(path)
        most.append(len(under_way))
        time.sleep(0.05)
        under_way.pop()
        return read(path, **options)

    monkeypatch.setattr(loader, "read", slowly)
    bodies = [{"model": model, "wait": True} for model in ("other", "main@2", "other@1")]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda body: admin.post("/admin/models/load", json=body), bodies))
    assert [answer.json()["state"] for answer in answers] == ["loaded"] * 3
    assert most == [1, 1]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model": "nobody"}, 404, "no model 'nobody'"),
        ({"model": "main@9"}, 404, "no version 9"),
        ({"model": "main@0"}, 404, "not a version number"),
        ({"model": "main@../../x"}, 404, "no alias '../../x'"),
        ({"model": "../main"}, 404, "no model '../main'"),
        ({"model": ""}, 400, "model"),
        ({"model": 7}, 400, "model"),
        ({}, 400, "model is required"),
        ({"model": "main", "now": True}, 400, "unknown parameter 'now'"),
    ],
)
def test_load_of_an_invalid_version_is_refused_with_the_reason(admin, registry, body, status, says):
    answer = admin.post("/admin/models/load", json=body)
    assert answer.status_code == status
    assert says in answer.json()["error"]["message"]
    assert str(registry.root) not in answer.text


def test_a_damaged_checkpoint_fails_and_others_are_unhurt(admin, registry):
    answer = admin.post("/admin/models/load", json={"model": "damaged", "wait": True})
    assert answer.status_code == 503
    assert (
        "damaged@1 could not be loaded: damaged/versions/1/config.json" in answer.json()["error"]["message"]
    )
    assert str(registry.root) not in answer.text
    assert rows(admin)["damaged@1"]["state"] == "failed"
    assert admin.post("/v1/score", json={"texts": ["a cat"]}).status_code == 200
    assert 'gramophone_model_loads_total{outcome="failed"} 1.0' in admin.get("/metrics").text


def test_an_unloaded_model_is_gone_from_memory_and_metrics(admin):
    admin.post("/admin/models/load", json={"model": "other", "wait": True})
    assert 'gramophone_model_memory_bytes{model_name="other@1"}' in admin.get("/metrics").text
    answer = admin.post("/admin/models/unload", json={"model": "other"})
    assert (answer.status_code, answer.json()["id"], answer.json()["state"]) == (200, "other@1", "published")
    assert rows(admin)["other@1"]["state"] == "published"
    assert 'model_name="other@1"' not in admin.get("/metrics").text
    asked = admin.post("/v1/score", json={"texts": ["a cat"], "model": "other"})
    assert (asked.status_code, "published but not loaded" in asked.json()["error"]["message"]) == (404, True)


def test_a_model_in_use_drains(started, admin):
    admin.post("/admin/models/load", json={"model": "other", "wait": True})
    started.app.state.services.host.resolve("other").model.delay_s = 0.02
    body = {"model": "other", "max_tokens": 25, "seed": 1, "stream": True}
    with admin.stream("POST", "/v1/generate", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert rows(admin)["other@1"]["requests_in_flight"] == 1
        answer = admin.post("/admin/models/unload", json={"model": "other"}).json()
        assert (answer["state"], answer["requests_in_flight"]) == ("draining", 1)
        assert [row["state"] for row in admin.get("/admin/models").json()["data"]].count("draining") == 1
        rest = [line for line in lines if line.startswith("data:")]
    assert rest[-1] == "data: [DONE]"
    wait_for(lambda: "draining" not in [row["state"] for row in admin.get("/admin/models").json()["data"]])


def test_the_default_is_not_unloaded(admin):
    answer = admin.post("/admin/models/unload", json={"model": "main"})
    assert answer.status_code == 400
    assert "GRAMOPHONE_DEFAULT_MODEL" in answer.json()["error"]["message"]


def test_unload_of_a_model_that_is_not_hosted_is_404(admin):
    assert admin.post("/admin/models/unload", json={"model": "other"}).status_code == 404


def test_an_alias_is_moved_and_followed(admin, registry):
    moved = admin.put("/admin/models/main/aliases/champion", json={"version": 2, "wait": True}).json()
    assert moved == {"model": "main", "alias": "champion", "version": 2, "previous": 1, "serving": "main@2"}
    assert registry.aliases("main") == {"champion": 2}
    assert admin.post("/v1/score", json={"texts": ["a cat"]}).json()["model"] == "main@2"
    assert rows(admin)["main@1"]["state"] == "published"


def test_an_alias_is_deleted(admin, registry):
    registry.set_alias("main", "candidate", 1)
    gone = admin.delete("/admin/models/main/aliases/candidate").json()
    assert (gone["version"], gone["previous"]) == (None, 1)
    assert registry.aliases("main") == {"champion": 1}
    assert admin.delete("/admin/models/main/aliases/candidate").status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("main/aliases/champion", {"version": 9}, 404),
        ("main/aliases/champion", {"version": 0}, 400),
        ("main/aliases/champion", {"version": -1}, 400),
        ("main/aliases/champion", {"version": "2"}, 400),
        ("main/aliases/champion", {"version": 1.5}, 400),
        ("main/aliases/champion", {"version": True}, 400),
        ("main/aliases/champion", {"version": 10**30}, 400),
        ("main/aliases/champion", {}, 400),
        ("main/aliases/7", {"version": 1}, 400),
        ("main/aliases/-x", {"version": 1}, 400),
        ("main/aliases/..%2f..%2fx", {"version": 1}, 404),
        ("main/aliases/a%2fb", {"version": 1}, 404),
        ("main/aliases/%2e%2e", {"version": 1}, 400),
        ("main/aliases/" + "x" * 200, {"version": 1}, 400),
        ("nobody/aliases/champion", {"version": 1}, 404),
        ("%2e%2e/aliases/champion", {"version": 1}, 404),
    ],
)
def test_a_bad_alias_changes_nothing(admin, registry, path, body, status):
    # httpx would normalise dots in a path given as text
    url = httpx.URL(str(admin.base_url)).copy_with(raw_path=f"/admin/models/{path}".encode())
    answer = admin.put(url, json=body)
    assert answer.status_code == status
    assert str(registry.root) not in answer.text
    assert registry.aliases("main") == {"champion": 1}
    assert sorted(path.name for path in registry.root.iterdir()) == [".default", "damaged", "main", "other"]


def test_a_registry_that_cannot_be_written_says_so(admin, registry, monkeypatch):
    def full(_path, _content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(stores, "replace_file", full)
    answer = admin.put("/admin/models/main/aliases/champion", json={"version": 2})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "registry_unavailable")
    assert str(registry.root) not in answer.text


@pytest.mark.parametrize("reason", ["EROFS", "EACCES", "EPERM"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "models/main/aliases/champion"),
        ("DELETE", "models/main/aliases/champion"),
        ("PUT", "profiles/one"),
        ("DELETE", "profiles/one"),
    ],
)
def test_a_registry_that_may_only_be_read_is_no_passing_failure(admin, monkeypatch, method, path, reason):
    number = getattr(errno, reason)

    def forbid(*_given, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(stores, "replace_file", forbid)
    monkeypatch.setattr(Path, "unlink", forbid)
    body = {"version": 2} if "aliases" in path else {"weights": {"rank": 1.0}}
    answer = admin.request(method, f"/admin/{path}", json=body if method == "PUT" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "registry_read_only")
    assert "retry-after" not in answer.headers
    assert "allow this process to write" in answer.json()["error"]["message"]


def test_a_failed_successor_is_shown_beside_the_model_that_serves(admin):
    with_damage = rows(admin)
    assert with_damage["main@1"]["reason"] is None
    admin.post("/admin/models/load", json={"model": "damaged", "wait": True})
    card = admin.get("/v1/models/damaged%401").json()
    assert (card["id"], card["state"]) == ("damaged@1", "failed")
    assert "damaged/versions/1" in card["reason"]
