"""The registry vanishes and returns under a service: loaded models are still served, new ones follow automatically."""

import httpx
import pytest

from models.checkpoint import load
from models.checkpoint.registry import LocalRegistry
from models.checkpoint.remote_registry import RemoteRegistry
from models.errors import RegistryError
from models.reranking.ranking import ProfileStore
from models.tokenizers import WordTokenizer
from service.hosting.loading import Loader
from service.hosting.model_host import ModelHost
from service.settings import Settings
from tests.contract.conftest import publish
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.object_stores import QUICK, Clock, FlakyStore, wait_until
from tests.support.services import running
from tests.unit.models.checkpoint.test_documents import profile

SCORE = {"texts": ["the cat sat"]}


@pytest.fixture(autouse=True)
def fake_family(monkeypatch):
    monkeypatch.setitem(load.FAMILIES, "fake", ("tests.support.fake_models", "FakeModel"))


def add_version(registry):
    words = WordTokenizer(fake_vocabulary())
    return publish(registry, "m", FakeModel(words.vocabulary, seed=len(registry.versions("m"))), words)


@pytest.fixture
def root(tmp_path):
    """Create a registry folder with `m@1`."""
    registry = LocalRegistry(tmp_path / "registry", create=True)
    add_version(registry)
    registry.set_alias("m", "champion", 1)
    return registry.root


@pytest.fixture(params=[[], ["m"], ["m@champion"]], ids=["every model", "by name", "by alias"])
def http(root, request):
    """Run a service that polls it often, with the model named in several ways."""
    settings = Settings(registry=root, watch_interval_s=0.03, models=request.param)
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def move_away(root):
    root.rename(root.with_name("elsewhere"))


def unmount(root):
    """Leave an empty folder, as when a volume is not mounted."""
    move_away(root)
    root.mkdir()


def replace_by_a_file(root):
    move_away(root)
    root.write_text("no folder")


def come_back(root):
    """Restore it with a new version and champion."""
    elsewhere = root.with_name("elsewhere")
    registry = LocalRegistry(elsewhere)
    add_version(registry)
    registry.set_alias("m", "champion", 2)
    if root.is_dir():
        root.rmdir()
    root.unlink(missing_ok=True)
    elsewhere.rename(root)


def answer(http):
    response = http.post("/v1/score", json={**SCORE, "model": "m"})
    assert response.status_code == 200, response.text
    return response.json()


def looks(http):
    """Yield replies until the service has surely polled the registry."""
    for _ in range(10):
        yield answer(http)


@pytest.mark.parametrize("go", [move_away, unmount, replace_by_a_file])
def test_a_folder_that_is_gone_changes_nothing_and_is_followed_again_when_it_is_back(root, http, go):
    before = answer(http)
    assert before["model"] == "m@1"
    go(root)
    for after in looks(http):
        assert after == before
        assert http.get("/health/ready").status_code == 200
        assert str(root) not in http.get("/admin/models").text
    come_back(root)
    wait_until(lambda: answer(http)["model"] == "m@2", seconds=10)
    assert answer(http)["results"] != before["results"]


@pytest.mark.parametrize("go", [move_away, replace_by_a_file])
@pytest.mark.parametrize("addresses", [[], ["m"]], ids=["every model", "by name"])
def test_how_long_ago_the_folder_could_be_read_is_known(root, go, addresses):
    """An alert uses this age."""
    clock = Clock()
    host = ModelHost(Loader(registry=LocalRegistry(root), clock=clock), addresses=addresses)
    go(root)
    clock.now_s = 60.0
    host.refresh()
    assert host.registry_look_age_s == 60.0
    come_back(root)
    host.refresh()
    assert host.registry_look_age_s == 0.0


def test_a_profile_that_is_gone_with_its_registry_is_not_taken_for_unknown(root):
    """Clients retry this error; an unknown profile would be the client's mistake."""
    profiles = ProfileStore(root)
    profiles.write(profile("p"))
    move_away(root)
    with pytest.raises(RegistryError, match=r"cannot read the registry .*: it does not exist"):
        profiles.read("p")
    root.with_name("elsewhere").rename(root)
    assert profiles.read("p") == profile("p")


def test_failed_load_is_retried_at_once_when_the_store_is_back(tmp_path, monkeypatch):
    """At any age of the failure: the wait between tries grows to ten minutes."""

    def vanish(*_):
        store.down = True
        raise RegistryError("cannot read memory://: it is down")

    clock = Clock()
    store = FlakyStore(f"memory://{tmp_path.name}/gone", QUICK)
    publisher, registry = (RemoteRegistry(store, cache=tmp_path / name, clock=clock) for name in "ab")
    add_version(publisher)
    host = ModelHost(Loader(registry=registry, clock=clock), addresses=["m"])
    host.load_all()
    add_version(publisher)
    with monkeypatch.context() as patch:
        patch.setattr(store, "chunks", vanish)  # after the listing with the version, before its files
        for _ in range(30):
            clock.now_s += 100.0
            host.refresh()
    assert "it is down" in host.models["m@2"].failure
    store.down = False
    clock.now_s += 11.0
    host.refresh()
    assert host.resolve("m").address == "m@2"
