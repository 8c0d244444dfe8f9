"""Stores that stall, corrupt, disconnect, vanish or are full: a clear error, no partial files, and recovery."""

import errno
import json
import os
import subprocess
import sys
import time

import pytest

from models.checkpoint import fsspec_store
from models.checkpoint import registry as checkpoint_registry
from models.checkpoint.registry import open_registry
from models.errors import IntegrityError, ManifestError, RegistryError
from tests.support.checkpoints import write_minimal
from tests.support.object_stores import QUICK, altering, s3_server, stalling, using

CONTENT = bytes(range(256)) * 64


@pytest.fixture(scope="module")
def server():
    with s3_server() as server:
        yield server
        server.fault = None


@pytest.fixture
def opened(server, monkeypatch, tmp_path):
    """Open a registry with `m@1`, each time with a separate cache."""
    with using(server, monkeypatch):
        address = server.make_bucket("faults")
        caches = (tmp_path / f"cache-{number}" for number in range(9))
        first = open_registry(address, cache=next(caches))
        first.publish("m", lambda folder: write_minimal(folder, content=CONTENT))
        yield lambda: open_registry(address, cache=next(caches))
        server.fault = None


def kept(registry):
    """Return the cached files of contents and versions, by name, without the cached listings."""
    cache = registry.work_folder.parents[1]
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and ".known" not in path.parts)


def test_a_store_that_stalls_is_not_waited_for_without_end(server, opened, monkeypatch):
    monkeypatch.setattr(checkpoint_registry, "STORE_TIMEOUTS", QUICK._replace(read_s=0.5))
    registry = opened()
    server.fault = stalling("GET")
    began_s = time.monotonic()
    with pytest.raises(RegistryError, match=r"cannot list s3://.*: .+"):
        registry.resolve("m")
    assert time.monotonic() - began_s < 10
    server.fault.release()


def test_a_store_that_trickles_is_not_waited_for_without_end(server, opened, monkeypatch):
    def trickle(_environ, start_response):
        start_response("200 OK", [("Content-Length", "1000"), ("ETag", '"x"')])
        return (time.sleep(0.2) or b"x" for _ in range(40))

    version = opened().resolve("m")
    monkeypatch.setattr(checkpoint_registry, "STORE_TIMEOUTS", QUICK._replace(call_s=2.0))
    registry = opened()
    server.fault = trickle
    with pytest.raises(RegistryError, match="no answer in time"):
        registry.fetch(version)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda body: body[:-1] + b"!", "its SHA-256 does not match"),
        (lambda body: body[:100], "was received with 100 bytes, but 16384 were published"),
        (lambda _: b"", "was received with 0 bytes"),
    ],
)
def test_altered_download_is_refused_and_not_cached(server, opened, change, told):
    registry = opened()
    server.fault = altering(server, change)
    with pytest.raises(IntegrityError, match=told):
        registry.fetch(registry.resolve("m"))
    assert kept(registry) == []
    server.fault = None
    assert (registry.fetch(registry.resolve("m")) / "weights.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("change", [lambda body: body[:-9], lambda body: body.replace(b"ngram", b"ngraM")])
def test_a_manifest_that_was_changed_is_refused(server, opened, change):
    registry = opened()
    server.fault = altering(server, change, of="/manifest.json")
    with pytest.raises((ManifestError, IntegrityError)):
        registry.fetch(registry.resolve("m"))
    assert kept(registry) == []


def test_a_store_that_vanishes_in_the_middle_leaves_nothing_and_can_be_gone_on_with(
    server, opened, monkeypatch
):
    def vanish(environ, start_response):
        if environ.get("HTTP_RANGE", "bytes=0-").startswith("bytes=0-"):
            return server.pass_on(environ, start_response)
        raise ConnectionResetError

    monkeypatch.setattr(checkpoint_registry, "STORE_TIMEOUTS", QUICK._replace(read_s=0.5))
    monkeypatch.setattr(fsspec_store, "_CHUNK_BYTES", 4096)
    registry = opened()
    version = registry.resolve("m")
    server.fault = vanish
    with pytest.raises(RegistryError, match="cannot read s3://"):
        registry.fetch(version)
    assert kept(registry) == []
    server.fault = None
    registry._cached.refresh()  # as the watcher does
    assert (registry.fetch(version) / "weights.bin").read_bytes() == CONTENT


def test_a_content_that_is_missing_is_named(server, opened):
    registry = opened()
    [blob] = registry._store.entries(".blobs")
    registry._store.delete(blob.key)
    with pytest.raises(IntegrityError, match=r"m@1: weights\.bin is not in s3://"):
        registry.fetch(registry.resolve("m"))


def test_a_full_disk_is_told_and_leaves_nothing_half(opened, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    registry = opened()
    version = registry.resolve("m")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RegistryError, match=r"cannot write to .*: No space left on device"):
            registry.fetch(version)
    assert kept(registry) == []
    assert (registry.fetch(version) / "weights.bin").read_bytes() == CONTENT


def test_a_damaged_cache_mends_itself(opened):
    registry = opened()
    path = registry.fetch(registry.resolve("m")) / "weights.bin"
    path.write_bytes(CONTENT[::-1])
    assert (registry.fetch(registry.resolve("m")) / "weights.bin").read_bytes() == CONTENT


def losing_one_answer(server, condition, lost):
    """Let the store execute one request with this header but reply 500, so the client repeats it."""

    def lose_one(environ, start_response):
        if lost or condition not in environ:
            return server.pass_on(environ, start_response)
        lost.append(server.pass_on(environ, lambda *_: None))
        start_response("500 Internal Server Error", [("Content-Length", "0")])
        return []

    return lose_one


def test_an_answer_that_was_lost_does_not_publish_twice(server, opened):
    registry, lost = opened(), []
    server.fault = losing_one_answer(server, "HTTP_IF_NONE_MATCH", lost)
    assert registry.publish("m", write_minimal).number == 2
    assert lost
    assert registry.versions("m") == [1, 2]


def test_a_version_is_published_though_the_store_never_says_so(server, opened, monkeypatch):
    def mute(environ, start_response):
        answer = server.pass_on(environ, start_response)
        if "HTTP_IF_NONE_MATCH" in environ:
            time.sleep(2.0)  # longer than every timeout
        return answer

    monkeypatch.setattr(checkpoint_registry, "STORE_TIMEOUTS", QUICK._replace(read_s=0.5))
    registry = opened()
    server.fault = mute
    assert registry.publish("m", write_minimal).number == 2
    assert registry.versions("m") == [1, 2]


def test_an_answer_that_was_lost_does_not_undo_an_alias(server, opened):
    registry, lost = opened(), []
    registry.set_alias("m", "champion", 1)
    server.fault = losing_one_answer(server, "HTTP_IF_MATCH", lost)
    registry.set_alias("m", "candidate", 1)
    assert lost
    assert registry.aliases("m") == {"champion": 1, "candidate": 1}


@pytest.fixture(scope="module")
def killed(server):
    environment = {**os.environ, **server.environment}  # noqa: TID251 - it is passed on
    address = server.make_bucket("killed")
    command = [sys.executable, "-m", "tests.fault.kill_remote_publisher", address]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_publisher_killed_at_any_request_leaves_all_versions_whole(killed):
    """Each listed version is fetched and verified; a version appears when its manifest is stored, not before."""
    counts = [left["versions"] for left in killed]
    assert len(counts) >= 5
    assert counts[-1] - counts[0] == 2  # killed right after its commit, and not killed
    assert sorted(counts) == counts


def test_sweep_removes_only_old_leftovers_of_killed_publishers(killed):
    assert killed[-1]["swept_young"] == 0
    assert killed[-1]["swept_old"] >= 1
