"""Registries in object stores: addresses, deduplicated contents, races, the cache, offline use."""

import logging
import math
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from models.checkpoint import folders
from models.checkpoint.fsspec_store import MemoryStore
from models.checkpoint.registry import LocalRegistry, open_registry
from models.checkpoint.remote_registry import RemoteRegistry
from models.checkpoint.stores import StoreTimeouts
from models.errors import InputError, ManifestError, ModelNotFoundError, RegistryError
from tests.support.checkpoints import write_minimal
from tests.support.object_stores import Clock, FlakyStore


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(request):
    return FlakyStore(f"memory://{abs(hash(request.node.name))}/r", StoreTimeouts())


@pytest.fixture
def registry(store, clock, tmp_path):
    return RemoteRegistry(store, cache=tmp_path / "cache", clock=clock)


@pytest.fixture
def other(store, tmp_path):
    """Another client of the same registry."""
    return RemoteRegistry(MemoryStore(store.location, StoreTimeouts()), cache=tmp_path / "other")


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [str, Path, lambda path: f"file://{path}"])
def test_a_folder_is_a_local_registry_however_it_is_addressed(tmp_path, form):
    registry = open_registry(form(tmp_path / "r"), create=True)
    assert isinstance(registry, LocalRegistry)
    assert registry.root == tmp_path / "r"


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/r", "s3://bucket/r?endpoint_url=x", "memory://a b"])
def test_url_with_credentials_or_options_is_refused_and_not_repeated(url):
    with pytest.raises(InputError, match="in the environment") as caught:
        open_registry(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://", "memory:///", "file://relative/path", "s3:/bucket/models"])
def test_a_url_without_a_bucket_or_a_folder_is_refused(url):
    with pytest.raises(InputError, match="registry"):
        open_registry(url)


def test_a_protocol_that_nobody_knows_is_told():
    with pytest.raises(RegistryError, match="cannot be opened: Protocol not known: nosuch"):
        open_registry("nosuch://bucket")


def test_the_extra_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InputError, match=r"s3fs: pip install 'gramophone-lm\[s3\]'"):
        open_registry("s3://bucket/r")


def test_the_cache_is_where_the_process_chose(monkeypatch, tmp_path):
    monkeypatch.setattr(folders, "_chosen_cache_folder", [])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folders.cache_folder() == tmp_path / ".cache" / "gramophone"
    folders.set_cache_folder(tmp_path / "mine")
    assert open_registry("memory://x/y").work_folder.is_relative_to(tmp_path / "mine")


def test_a_user_without_a_home_is_told_to_name_a_cache(monkeypatch):
    monkeypatch.setattr(folders, "_chosen_cache_folder", [Path("~nobody-of-this-name/cache")])
    with pytest.raises(RegistryError, match="GRAMOPHONE_REGISTRY_CACHE"):
        open_registry("memory://x/y")


def test_a_cache_below_a_home_that_is_not_there_is_an_error_of_ours():
    with pytest.raises(RegistryError, match=r"home folder .*nobody-of-this-name"):
        open_registry("memory://x/y", cache=Path("~nobody-of-this-name/cache"))


# --- read-only stores -----------------------------------------------------------------------------


@pytest.fixture
def served_folder(tmp_path):
    """Local registry behind a web server that lists folders, and its URL."""
    registry = LocalRegistry(tmp_path / "served", create=True)
    for content in (b"one", b"two"):
        registry.publish("m", partial(write_minimal, content=content))
    registry.set_alias("m", "champion", 1)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield registry, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_local_registry_is_read_through_a_web_server_and_watched(served_folder, tmp_path):
    local, url = served_folder
    registry = open_registry(url, cache=tmp_path / "cache")
    assert registry.models() == ["m"]
    assert (registry.fetch(registry.resolve("m")) / "weights.bin").read_bytes() == b"one"
    before = registry.change_stamps()
    local.set_alias("m", "champion", 2)
    assert registry.change_stamps() != before
    assert registry.resolve("m").number == 2


def test_a_store_without_conditional_writes_is_read_only(served_folder, tmp_path):
    registry = open_registry(served_folder[1], cache=tmp_path / "cache")
    for change in (
        lambda: registry.publish("m", write_minimal),
        lambda: registry.set_alias("m", "champion", 2),
        lambda: registry.delete_alias("m", "champion"),
        lambda: registry.delete("m", 2),
        lambda: registry.sweep(older_than_s=0),
    ):
        with pytest.raises(RegistryError, match="is read-only"):
            change()


# --- publishing -----------------------------------------------------------------------------------


def test_equal_contents_are_stored_once(registry, store):
    for name in ("a", "a", "b"):
        registry.publish(name, write_minimal)
    assert len(store.entries(".blobs")) == 1


def test_contents_that_are_published_again_are_young_again(registry, store):
    """A sweep must not remove them before the second manifest exists."""
    registry.publish("m", write_minimal)
    (before,) = store.entries(".blobs")
    registry.publish("m", write_minimal)
    (after,) = store.entries(".blobs")
    assert before.key == after.key
    assert before.modified_s < after.modified_s


def test_publisher_that_loses_a_number_takes_the_next(registry, store, other):
    store.before_put = lambda: other.publish("m", partial(write_minimal, content=b"faster"))
    version = registry.publish("m", partial(write_minimal, content=b"slower"))
    assert version.number == 2
    assert other.read_file(other.resolve("m@1"), "weights.bin") == b"faster"
    assert other.read_file(other.resolve("m@2"), "weights.bin") == b"slower"


def test_a_number_that_was_published_and_deleted_meanwhile_is_not_taken(registry, store, other):
    def come_and_go():
        other.publish("m", write_minimal)
        other.delete("m", 1)

    store.before_put = come_and_go
    assert registry.publish("m", write_minimal).number == 2


def test_a_store_that_refuses_every_number_is_not_asked_for_ever(registry, monkeypatch):
    monkeypatch.setattr(FlakyStore, "put_if_match", lambda *_: False)
    with pytest.raises(RegistryError, match="refused 1000 new versions of m in a row, up to 1000"):
        registry.publish("m", write_minimal)


def test_published_version_is_in_the_cache(registry, store):
    version = registry.publish("m", write_minimal)
    store.down = True
    assert (registry.fetch(version) / "weights.bin").read_bytes() == b"weights"


def test_a_sweep_removes_old_contents_that_nothing_names(registry, store):
    kept, gone = (registry.publish("m", partial(write_minimal, content=c)) for c in (b"kept", b"gone"))
    registry.delete("m", gone.number)
    assert registry.sweep(older_than_s=3600) == 0
    assert registry.sweep(older_than_s=-1) == 1
    assert registry.sweep(older_than_s=-1) == 0
    assert len(store.entries(".blobs")) == 1
    assert kept in registry.published()


def test_contents_that_a_publisher_stores_during_a_sweep_are_kept(registry, store, monkeypatch):
    registry.publish("m", write_minimal)
    registry.delete("m", registry.publish("m", partial(write_minimal, content=b"again")).number)
    before, read = store.entries(".blobs"), store.read

    def stored_again(key, num_bytes=None):
        for entry in before:
            store.put(entry.key, read(entry.key).content)
        return read(key, num_bytes)

    monkeypatch.setattr(store, "read", stored_again)
    assert registry.sweep(older_than_s=0) == 0
    assert {entry.key for entry in store.entries(".blobs")} == {entry.key for entry in before}


@pytest.mark.parametrize(
    ("stored_s", "now_s", "older_than_s", "removed"),
    [
        (40.0, 100.0, 60.0, 0),
        (39.9, 100.0, 60.0, 1),
        (100.0, 100.0, 0.0, 0),
        (math.inf, 100.0, 0.0, 0),
        (40.0, math.inf, 0.0, 0),
    ],
)
def test_a_sweep_removes_what_is_older_by_the_clock_of_the_store(
    registry, store, monkeypatch, stored_s, now_s, older_than_s, removed
):
    """The time is that of a new object; nothing is removed if either has no time."""
    registry.delete("m", registry.publish("m", write_minimal).number)
    entries = store.entries

    def timed(folder=""):
        return [e._replace(modified_s=now_s if "clock" in e.key else stored_s) for e in entries(folder)]

    monkeypatch.setattr(store, "entries", timed)
    assert registry.sweep(older_than_s=older_than_s) == removed
    assert len(entries(".blobs")) == 1 - removed


def test_a_sweep_leaves_the_clock_of_another_one_and_reads_no_deleted_version(registry, store, monkeypatch):
    for _ in range(3):
        registry.delete("m", registry.publish("m", write_minimal).number)
    delete, read = store.delete, []
    monkeypatch.setattr(store, "delete", lambda key: None if "clock" in key else delete(key))
    monkeypatch.setattr(store, "read", read.append)
    assert registry.sweep(older_than_s=-1) == 1
    assert [entry.key for entry in store.entries(".blobs")] == [".blobs/.clock"]
    assert read == []


# --- aliases --------------------------------------------------------------------------------------


def test_a_change_of_somebody_elses_is_kept(registry, store, other):
    registry.publish("m", write_minimal)
    store.before_put = lambda: other.set_alias("m", "theirs", 1)
    registry.set_alias("m", "ours", 1)
    assert other.aliases("m") == {"ours": 1, "theirs": 1}


def test_an_alias_to_a_version_that_is_deleted_meanwhile_goes_back(registry, store, other):
    for _ in range(2):
        registry.publish("m", write_minimal)
    registry.set_alias("m", "champion", 1)
    store.before_put = lambda: other.delete("m", 2)
    with pytest.raises(ModelNotFoundError, match="it was deleted just now"):
        registry.set_alias("m", "champion", 2)
    assert other.aliases("m") == {"champion": 1}


def test_a_version_that_gets_an_alias_while_it_is_deleted_stays(registry, store, other):
    registry.publish("m", write_minimal)
    store.before_put = lambda: other.set_alias("m", "champion", 1)
    with pytest.raises(InputError, match="m@1 is champion"):
        registry.delete("m", 1)
    assert other.versions("m") == [1]
    assert other.read_file(other.resolve("m"), "weights.bin") == b"weights"


def test_two_who_delete_the_same_version_delete_it_once(registry, store, other):
    registry.publish("m", write_minimal)
    store.before_put = lambda: other.delete("m", 1)
    with pytest.raises(ModelNotFoundError, match="by another process"):
        registry.delete("m", 1)


# --- the cache ------------------------------------------------------------------------------------


def test_a_manifest_of_an_ill_willed_publisher_writes_nothing_outside_the_cache(registry, store, tmp_path):
    version = registry.publish("m", write_minimal)
    (entry,) = registry.manifest(version).files.values()
    ill = tmp_path / "ill"
    ill.mkdir()
    write_minimal(ill, files={f"/{tmp_path}/planted": entry})
    store.put("m/versions/2/manifest.json", (ill / "manifest.json").read_bytes())
    with pytest.raises(ManifestError, match="outside the checkpoint"):
        registry.fetch(registry.resolve("m@2"))
    assert not (tmp_path / "planted").exists()


def test_a_version_is_fetched_once(registry, other, store):
    version = other.publish("m", write_minimal)
    first = registry.fetch(registry.resolve("m"))
    calls = store.num_calls
    assert registry.fetch(version._replace(path=first)) == first
    assert store.num_calls == calls + 1  # its manifest only


def test_versions_share_their_contents_in_the_cache(registry, other):
    for name in ("a", "b"):
        other.publish(name, write_minimal)
    first, second = (registry.fetch(registry.resolve(name)) / "weights.bin" for name in ("a", "b"))
    assert first.samefile(second)


def test_a_version_of_a_registry_that_was_emptied_is_not_taken_for_the_new_one(registry, other, store):
    other.publish("m", partial(write_minimal, content=b"old"))
    registry.fetch(registry.resolve("m"))
    store._invoke("rm", store._root, recursive=True)
    other.publish("m", partial(write_minimal, content=b"new"))
    assert (registry.fetch(registry.resolve("m")) / "weights.bin").read_bytes() == b"new"


def test_several_who_want_a_version_fetch_it_once(store, other, tmp_path):
    other.publish("m", write_minimal)
    fetched = []
    registries = [RemoteRegistry(store, cache=tmp_path / "shared") for _ in range(4)]
    threads = [
        threading.Thread(target=lambda own=own: fetched.append(own.fetch(own.resolve("m"))))
        for own in registries
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(fetched)) == 1
    assert store.num_calls == 4 * 3 + 1  # versions, aliases and manifest per thread; the content once


# --- offline --------------------------------------------------------------------------------------


def test_cached_catalogue_and_version_are_used_while_the_store_is_down(registry, store, other, caplog):
    other.publish("m", write_minimal)
    other.set_alias("m", "champion", 1)
    registry.models()
    registry.fetch(registry.resolve("m@champion"))
    store.down = True
    with caplog.at_level(logging.WARNING):
        version = registry.resolve("m")
    assert (registry.models(), version.address, registry.aliases("m")) == (["m"], "m@1", {"champion": 1})
    assert registry.fetch(version).is_dir()
    assert [record.message for record in caplog.records] == [
        "registry unreachable, using cached data: cannot read memory://: it is down"
    ]


def test_a_new_process_starts_by_what_an_earlier_one_saw(registry, store, other, tmp_path):
    other.publish("m", write_minimal)
    registry.fetch(registry.resolve("m"))
    store.down = True
    later = RemoteRegistry(store, cache=tmp_path / "cache")
    assert later.models() == ["m"]
    assert later.aliases("m") == {}
    assert (later.fetch(later.resolve("m")) / "weights.bin").read_bytes() == b"weights"


def test_uncached_catalogue_is_an_error_while_the_store_is_down(registry, store):
    store.down = True
    for ask in (registry.models, lambda: registry.resolve("m"), registry.change_stamps, registry.published):
        with pytest.raises(RegistryError, match="it is down"):
            ask()


def test_a_version_that_was_seen_but_never_fetched_is_an_error_without_the_store(registry, store, other):
    other.publish("m", write_minimal)
    version = registry.resolve("m")
    store.down = True
    with pytest.raises(RegistryError, match="it is down"):
        registry.fetch(version)


def test_the_store_is_asked_again_after_some_seconds(registry, store, other, clock):
    other.publish("m", write_minimal)
    registry.resolve("m")
    store.down = True
    registry.resolve("m")
    store.down = False
    other.publish("m", write_minimal)
    assert registry.resolve("m").number == 1
    clock.now_s = 11.0
    assert registry.resolve("m").number == 2


def test_changes_are_never_made_to_what_is_only_remembered(registry, store, other):
    other.publish("m", write_minimal)
    registry.resolve("m")
    store.down = True
    with pytest.raises(RegistryError, match="it is down"):
        registry.set_alias("m", "champion", 1)
    with pytest.raises(RegistryError, match="it is down"):
        registry.publish("m", write_minimal)


def test_cached_version_is_resolved_without_a_request(registry, store, other):
    other.publish("m", write_minimal)
    other.set_alias("m", "champion", 1)
    with pytest.raises(ModelNotFoundError):
        registry.resolve_cached("m")
    registry.change_stamps()
    calls = store.num_calls
    assert registry.resolve_cached("m@1").address == "m@1"
    assert store.num_calls == calls


def test_a_model_that_has_gone_is_forgotten(registry, store, other):
    other.publish("m", write_minimal)
    registry.models()
    store._invoke("rm", store._root, recursive=True)
    registry.models()
    with pytest.raises(ModelNotFoundError, match="models: none"):
        registry.resolve_cached("m")
