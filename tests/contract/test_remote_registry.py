"""A service with its registry in an object store that may be slow, corrupt or unavailable."""

import contextlib
import json
import subprocess
import sys
import time

import httpx
import pytest

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import open_registry
from models.tokenizers import WordTokenizer
from service.api_keys import create_key
from service.settings import Settings
from tests.contract.conftest import publish
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.object_stores import QUICK, altering, s3_server, stalling, using, wait_until
from tests.support.services import running

SCORE = {"texts": ["the cat sat on the mat"]}


@pytest.fixture
def store(fake_family, monkeypatch):
    """Run a separate S3 server."""
    with s3_server() as server, using(server, monkeypatch, patience=QUICK):
        yield server


@pytest.fixture
def registry(store, tmp_path):
    """Publish `main@1`, the champion, from another machine's cache."""
    registry = open_registry(f"{store.make_bucket('models')}/all", cache=tmp_path / "publisher")
    add_version(registry)
    registry.set_alias("main", "champion", 1)
    return registry


def add_version(registry):
    words = WordTokenizer(fake_vocabulary())
    seed = len(registry.versions("main"))
    return publish(registry, "main", FakeModel(words.vocabulary, seed=seed), words)


@pytest.fixture
def started(registry, tmp_path):
    """Start services that share a cache."""

    @contextlib.contextmanager
    def start(**options):
        settings = Settings(
            registry=registry.location,
            registry_cache=tmp_path / "cache",
            **{"watch_interval_s": 0.05, **options},
        )
        with running(settings) as server, httpx.Client(base_url=server.url, timeout=20) as client:
            host = server.app.state.services.host
            host._clock = lambda: time.monotonic() * 100  # waits of tenths of a second
            yield client

    return start


def answering(client):
    """Return the address of the version that answers."""
    answer = client.post("/v1/score", json=SCORE)
    assert answer.status_code == 200
    return answer.json()["model"]


def test_new_versions_and_moved_aliases_are_followed(registry, started):
    with started() as client:
        assert answering(client) == "main@1"
        add_version(registry)
        registry.set_alias("main", "champion", 2)
        wait_until(lambda: answering(client) == "main@2")


def test_the_admin_changes_aliases_and_lists_versions_in_the_store(registry, started):
    key = create_key("operator", ["admin", "infer", "metrics"])
    add_version(registry)
    with started(api_keys=(key.key.line,)) as client:
        client.headers["authorization"] = f"Bearer {key.secret}"
        assert client.get("/health/ready").status_code == 200
        listed = client.get("/admin/models").json()
        moved = client.put("/admin/models/main/aliases/champion", json={"version": 2, "wait": True})
        assert moved.json()["serving"] == "main@2"
        assert answering(client) == "main@2"
        assert registry.aliases("main") == {"champion": 2}
        missing = client.put("/admin/models/main/aliases/champion", json={"version": 9})
    assert [model["id"] for model in listed["data"]] == ["main@1", "main@2"]
    assert missing.status_code == 404
    assert registry.location not in missing.text


def test_a_store_that_is_gone_changes_nothing_and_is_followed_again_when_it_is_back(store, registry, started):
    with started() as client:
        add_version(registry)
        registry.set_alias("main", "champion", 2)
        wait_until(lambda: answering(client) == "main@2")
        registry.set_alias("main", "champion", 1)
        wait_until(lambda: answering(client) == "main@1")
        store.fault = refusing
        num_asked = len(store.requests)
        wait_until(lambda: len(store.requests) > num_asked + 5)
        assert answering(client) == "main@1"
        assert client.get("/health/ready").status_code == 200
        store.fault = None
        registry.set_alias("main", "champion", 2)
        wait_until(lambda: answering(client) == "main@2")


def refusing(_environ, start_response):
    start_response("503 Service Unavailable", [("Content-Length", "0")])
    return []


def test_a_service_starts_from_its_cache_while_the_store_is_gone(store, registry, started):
    with started() as client:
        assert answering(client) == "main@1"
    store.close()
    with started() as client:
        assert answering(client) == "main@1"
        assert client.get("/health/ready").status_code == 200
        unknown = client.post("/v1/score", json={**SCORE, "model": "nobody"})
    assert unknown.status_code == 404


def test_without_a_store_and_without_a_cache_the_reason_is_told(store, registry, started):
    store.close()
    with pytest.raises(Exception, match=r"cannot list s3://models-.*/all: ") as caught, started():
        pass
    assert type(caught.value).__name__ == "RegistryError"


@pytest.mark.parametrize("kind", ["vanishes", "stalls", "lies"])
def test_a_store_that_fails_in_the_middle_of_a_load_leaves_the_old_version_answering(
    store, registry, started, kind
):
    with started() as client:
        add_version(registry)
        faults = {
            "vanishes": only(store, refusing),
            "stalls": only(store, stalling("GET", seconds=3.0)),
            "lies": altering(store, lambda body: body[:-1] + b"?"),
        }
        store.fault = faults[kind]
        registry.set_alias("main", "champion", 2)
        asked = [request for request in store.requests if "/.blobs/" in request[1]]
        wait_until(lambda: len([r for r in store.requests if "/.blobs/" in r[1]]) > len(asked))
        assert answering(client) == "main@1"
        metrics = client.get("/metrics").text
        store.fault = None
        wait_until(lambda: answering(client) == "main@2", seconds=60)
    assert "gramophone_models_loaded 1.0" in metrics


def test_a_store_that_lists_but_does_not_read_is_asked_until_it_does(store, registry, started):
    def unreadable(environ, start_response):
        reads = environ["PATH_INFO"].endswith("/aliases.json") and environ["REQUEST_METHOD"] == "GET"
        return (refusing if reads else store.pass_on)(environ, start_response)

    with started() as client:
        add_version(registry)
        registry.set_alias("main", "champion", 2)
        wait_until(lambda: answering(client) == "main@2")
        registry.set_alias("main", "champion", 1)
        wait_until(lambda: answering(client) == "main@1")
        tagged = registry._store.read("main/aliases.json")
        store.fault = unreadable
        registry._store.put_if_match("main/aliases.json", tagged.content.replace(b"1", b"2"), tagged.tag)
        asked = len(store.requests)
        wait_until(lambda: sum("aliases" in path for _, path, _ in store.requests[asked:]) >= 4)
        assert answering(client) == "main@1"
        store.fault = None
        wait_until(lambda: answering(client) == "main@2")


def test_the_command_line_reads_the_endpoint_from_the_environment(store, registry, tmp_path):
    command = [
        sys.executable,
        "-m",
        "service.cli",
        "--registry-cache",
        str(tmp_path / "cache"),
        "models",
        "list",
    ]
    options = ["--registry", registry.location, "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    assert [row["model"] for row in json.loads(done.stdout)] == ["main@1"]
    store.close()
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    assert [row["model"] for row in json.loads(done.stdout)] == ["main@1"]
    assert "unreachable, using cached data: cannot list s3://" in done.stderr


def only(store, fault):
    """Apply a fault to contents only; manifests and aliases still arrive."""

    def faulty(environ, start_response):
        is_content = environ["REQUEST_METHOD"] == "GET" and "/.blobs/" in environ["PATH_INFO"]
        return (fault if is_content else store.pass_on)(environ, start_response)

    return faulty


def test_asking_for_unknown_models_does_not_ask_the_store(store, registry, started):
    with started(watch_interval_s=0) as client:
        num_asked = len(store.requests)
        answers = {client.post("/v1/score", json={**SCORE, "model": f"m{n}"}).status_code for n in range(3)}
        assert len(store.requests) == num_asked
    assert answers == {404}


def test_files_for_people_come_from_the_cache(store, registry, started):
    words = WordTokenizer(fake_vocabulary())
    card = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {"MODEL_CARD.md": b"# Main"})
    registry.publish(
        "main", lambda folder: write_checkpoint(folder, FakeModel(words.vocabulary), words, card)
    )
    registry.set_alias("main", "champion", 2)
    with started() as client:
        store.fault = refusing
        files = client.get("/v1/models/main@2/card")
    assert files.text == "# Main"
