"""What every registry does alike: in a folder, in this process's memory, at S3."""

import json
import threading
import time
from functools import partial

import pytest

from models.checkpoint.manifest import verify_files
from models.checkpoint.registry import open_registry
from models.errors import InvalidInputError, ManifestError, ModelNotFoundError
from tests.checkpoints import write_minimal
from tests.object_stores import s3_server, using


@pytest.fixture(scope="module")
def server():
    with s3_server() as server:
        yield server


@pytest.fixture(params=["folder", "memory", "s3"])
def opened(request, tmp_path, server, monkeypatch):
    """Opens one registry, again and again, each time with a cache of its own."""
    name = f"r{abs(hash(request.node.name))}"
    address = {"folder": tmp_path / name, "memory": f"memory://{name}/models"}.get(request.param)
    with using(server, monkeypatch):
        address = address or f"{server.make_bucket('registries')}/models"
        caches = (tmp_path / f"cache-{number}" for number in range(99))
        yield lambda: open_registry(address, create=True, cache=next(caches))


@pytest.fixture
def registry(opened):
    return opened()


def test_what_one_publishes_another_resolves_and_fetches(opened):
    published = opened().publish("m", lambda folder: write_minimal(folder, content=b"one"))
    other = opened()
    version = other.resolve("m")
    folder = other.fetch(version)
    assert version.address == published.address == "m@1"
    assert (folder / "weights.bin").read_bytes() == b"one"
    verify_files(folder, other.manifest(version))


def test_an_empty_registry_has_no_model(registry):
    assert registry.models() == registry.published() == registry.versions("m") == []
    with pytest.raises(ModelNotFoundError, match="there are: none"):
        registry.resolve("m")


def test_the_default_so_far_is_remembered_before_another_name_comes(opened):
    registry = opened()
    registry.publish("mine", write_minimal)
    registry.publish("mine", write_minimal)
    assert registry.default() is None
    registry.publish("alpha", write_minimal)
    assert opened().default() == "mine"
    registry.set_default("alpha")
    registry.publish("aardvark", write_minimal)
    assert opened().default() == "alpha"
    with pytest.raises(ModelNotFoundError, match="no model 'nobody'"):
        registry.set_default("nobody")


def test_aliases_move_and_go(registry):
    for _ in range(2):
        registry.publish("m", write_minimal)
    registry.set_alias("m", "champion", 1)
    registry.set_alias("m", "candidate", 2)
    assert registry.aliases("m") == {"champion": 1, "candidate": 2}
    assert registry.resolve("m").number == 1
    assert registry.resolve("m@candidate").number == 2
    assert registry.delete_alias("m", "champion") == 1
    assert registry.aliases("m") == {"candidate": 2}
    with pytest.raises(ModelNotFoundError, match="no alias 'champion'"):
        registry.delete_alias("m", "champion")


@pytest.mark.parametrize(("name", "alias"), [("nobody", "champion"), ("m", "../x")])
def test_an_alias_that_cannot_be_is_not_found(registry, name, alias):
    registry.publish("m", write_minimal)
    with pytest.raises(ModelNotFoundError):
        registry.delete_alias(name, alias)


def test_an_alias_is_a_name_and_points_to_a_version(registry):
    registry.publish("m", write_minimal)
    with pytest.raises(InvalidInputError, match="read as a version number"):
        registry.set_alias("m", "7", 1)
    with pytest.raises(ModelNotFoundError, match="no version 5"):
        registry.set_alias("m", "champion", 5)
    assert registry.aliases("m") == {}


def test_a_deleted_version_is_gone_and_its_number_stays_used(registry):
    for _ in range(2):
        registry.publish("m", write_minimal)
    registry.delete("m", 2)
    assert registry.versions("m") == [1]
    assert [version.address for version in registry.published()] == ["m@1"]
    with pytest.raises(ModelNotFoundError, match="no version 2"):
        registry.delete("m", 2)
    assert registry.publish("m", write_minimal).number == 3


def test_a_version_an_alias_points_to_cannot_be_deleted(registry):
    registry.publish("m", write_minimal)
    registry.set_alias("m", "champion", 1)
    with pytest.raises(InvalidInputError, match="m@1 is champion"):
        registry.delete("m", 1)
    assert registry.versions("m") == [1]


def test_one_file_is_read_without_the_others(registry):
    version = registry.publish("m", write_minimal)
    assert registry.read_file(version, "weights.bin") == b"weights"
    with pytest.raises(ManifestError, match=r"nosuch\.json"):
        registry.read_file(version, "nosuch.json")


def test_a_writer_that_fails_publishes_nothing(registry):
    def fail(folder):
        (folder / "half").write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        registry.publish("m", fail)
    assert registry.models() == []


def test_a_stamp_changes_with_versions_and_aliases_and_with_nothing_else(opened):
    registry, watcher = opened(), opened()
    registry.publish("m", write_minimal)
    registry.publish("other", write_minimal)
    changes = [
        lambda: registry.set_alias("m", "champion", 1),
        lambda: registry.publish("m", write_minimal),
        lambda: registry.delete("m", 2),
        lambda: registry.delete_alias("m", "champion"),
    ]
    before = watcher.change_stamps()
    assert before == watcher.change_stamps() == watcher.change_stamps(["m", "other"])
    for change in changes:
        time.sleep(0.02)  # longer than a tick of the file system's clock
        change()
        after = watcher.change_stamps()
        assert after["m"] != before["m"]
        assert after["other"] == before["other"]
        before = after


def test_publishers_at_the_same_time_lose_nothing(opened):
    def work(registry, number):
        for place in range(4):
            content = f"{number} {place}".encode()
            registry.publish("m", partial(write_minimal, content=content))

    threads = [threading.Thread(target=work, args=(opened(), number)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    registry = opened()
    assert registry.versions("m") == list(range(1, 13))
    contents = {registry.read_file(version, "weights.bin") for version in registry.published()}
    assert len(contents) == 12


def test_writers_of_aliases_lose_nothing(opened):
    registry = opened()
    registry.publish("m", write_minimal)

    def work(own, number):
        for place in range(4):
            own.set_alias("m", f"alias-{number}-{place}", 1)

    threads = [threading.Thread(target=work, args=(opened(), number)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.aliases("m")) == 12


def test_a_messages_place_can_be_left_out(registry):
    told = registry.redact_location(f"{registry.location}/m: {json.dumps(str(registry.work_folder / 'm'))}")
    assert told == 'm: "m"'
