"""Registries in folders, in memory and in S3: atomic versions and aliases, resolution of addresses."""

import errno
import fcntl
import json
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from models.checkpoint import registry as checkpoint_registry
from models.checkpoint import stores
from models.checkpoint.folders import locked_folder
from models.checkpoint.manifest import Version, verify_files
from models.checkpoint.registry import LocalRegistry, open_registry
from models.checkpoint.registry_interface import Catalogue
from models.errors import InputError, IntegrityError, ManifestError, ModelNotFoundError, RegistryError
from tests.support.checkpoints import write_minimal
from tests.support.object_stores import s3_server, using


@pytest.fixture
def registry(tmp_path):
    return LocalRegistry(tmp_path / "registry", create=True)


def test_versions_count_up_and_a_bare_name_means_the_newest(registry):
    assert [registry.publish("m", write_minimal).number for _ in range(3)] == [1, 2, 3]
    assert registry.versions("m") == [1, 2, 3]
    assert registry.resolve("m").address == "m@3"
    assert registry.resolve("m@2").path.name == "2"
    assert registry.models() == ["m"]


@pytest.mark.parametrize(
    "address",
    [
        "nosuch",
        "m@9",
        "m@nosuch",
        "",
        "@",
        "../m",
        "m/versions/1",
        "m@1@2",
        "m@" + "9" * 5000,
        "m@\u0661",
    ],
)
def test_an_unknown_address_says_what_there_is(registry, address):
    registry.publish("m", write_minimal)
    with pytest.raises(ModelNotFoundError):
        registry.resolve(address)


def test_published_files_cannot_be_written_to_and_are_deleted_as_before(registry):
    version = registry.publish("m", write_minimal)
    assert {path.stat().st_mode & 0o222 for path in version.path.iterdir()} == {0}
    registry.delete("m", 1)
    assert registry.publish("m", write_minimal).number == 2


def test_an_address_that_ends_with_its_at_sign_is_refused(registry):
    registry.publish("m", write_minimal)
    with pytest.raises(InputError, match=r"must follow the @, as in m@7 or m@champion"):
        registry.resolve("m@")


def test_a_folder_that_is_no_version_number_is_none(registry):
    registry.publish("m", write_minimal)
    for name in ("01", "0", "\u0663", "x"):
        (registry.root / "m" / "versions" / name).mkdir()
        write_minimal(registry.root / "m" / "versions" / name)
    assert registry.versions("m") == [1]


def test_a_registry_that_has_gone_is_an_error_of_ours(registry):
    registry.root.rmdir()
    with pytest.raises(RegistryError, match="cannot read the registry"):
        registry.resolve("m")


def test_an_alias_that_cannot_be_written_is_an_error_of_ours(registry, monkeypatch):
    def full(_path, _content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    registry.publish("m", write_minimal)
    monkeypatch.setattr(stores, "replace_file", full)
    with pytest.raises(RegistryError, match="cannot write to"):
        registry.set_alias("m", "champion", 1)


def test_deleting_a_version_follows_no_link(registry, tmp_path):
    version = registry.publish("m", write_minimal)
    (tmp_path / "kept").mkdir()
    (version.path / "link").symlink_to(tmp_path / "kept")
    registry.delete("m", 1)
    assert registry.versions("m") == []
    assert (tmp_path / "kept").is_dir()


def test_aliases_nested_without_end_are_damaged(registry):
    registry.publish("m", write_minimal)
    (registry.root / "m" / "aliases.json").write_text("[" * 100_000)
    with pytest.raises(ManifestError, match="is damaged"):
        registry.resolve("m")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "ü", "a b", "x" * 101, "a\n", "a@1"])
def test_a_name_that_is_no_folder_name_is_refused(registry, name):
    with pytest.raises(InputError, match="must start with a letter or digit"):
        registry.publish(name, write_minimal)
    assert registry.models() == []


def test_a_writer_that_fails_publishes_nothing_and_leaves_nothing(registry):
    def fail(directory):
        (directory / "half").write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        registry.publish("m", fail)
    assert registry.versions("m") == []
    assert list((registry.root / "m" / "versions").iterdir()) == []


def test_version_that_does_not_verify_is_not_published(registry):
    def lie(directory):
        write_minimal(directory)
        (directory / "weights.bin").write_bytes(b"WEIGHTS")

    with pytest.raises(IntegrityError):
        registry.publish("m", lie)
    assert registry.versions("m") == []


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"champion": "one"}', '{"champion": true}', "\xff"])
def test_damaged_aliases_are_an_error_that_says_how_to_mend_them(registry, content):
    registry.publish("m", write_minimal)
    (registry.root / "m" / "aliases.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ManifestError, match="promote"):
        registry.resolve("m")
    assert registry.resolve("m@1").number == 1
    registry.set_alias("m", "champion", 1)
    assert registry.resolve("m").number == 1


def test_a_registry_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(RegistryError, match=r"no registry at .*--registry"):
        LocalRegistry(tmp_path / "absent")


def test_a_registry_that_cannot_be_made_says_why(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RegistryError, match="cannot create"):
        LocalRegistry(tmp_path / "file" / "registry", create=True)


def test_a_model_that_is_not_there_has_a_stamp_that_changes_when_it_comes(registry):
    before = registry.change_stamps(["m"])
    registry.publish("m", write_minimal)
    assert registry.change_stamps(["m"]) != before


@pytest.mark.parametrize(
    "change", [lambda r: r.set_alias("m", "champion", 1), lambda r: r.delete("m", 1)], ids=["alias", "delete"]
)
def test_a_version_that_somebody_deletes_meanwhile_is_not_there(registry, monkeypatch, change):
    """A process that waited for the lock checks again, so no alias is left dangling."""
    registry.publish("m", write_minimal)

    def late(folder):
        for module in (checkpoint_registry, stores):
            monkeypatch.setattr(module, "locked_folder", locked_folder)
        registry.delete("m", 1)
        return locked_folder(folder)

    for module in (checkpoint_registry, stores):
        monkeypatch.setattr(module, "locked_folder", late)
    with pytest.raises(ModelNotFoundError, match=r"there is no model 'm'|it was deleted just now"):
        change(registry)
    assert registry.aliases("m") == {}


@pytest.mark.parametrize(
    "change", [lambda r: r.delete("m", 2), lambda r: r.sweep(older_than_s=0)], ids=["delete", "sweep"]
)
def test_nothing_is_removed_while_a_publisher_makes_its_folder_or_takes_its_number(registry, change):
    for _ in range(2):
        registry.publish("m", write_minimal)
    changing = threading.Thread(target=change, args=(registry,))
    with locked_folder(registry.root / "m" / "versions"):
        changing.start()
        changing.join(0.3)
        assert changing.is_alive()
    changing.join(10)
    assert not changing.is_alive()


def test_a_number_is_taken_while_nobody_else_can_delete_or_take_one(registry, monkeypatch):
    take = checkpoint_registry._rename_to_next_number

    def taking(temporary, versions):
        descriptor = os.open(versions, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        return take(temporary, versions)

    monkeypatch.setattr(checkpoint_registry, "_rename_to_next_number", taking)
    assert registry.publish("m", write_minimal).number == 1


def test_aliases_that_cannot_be_read_are_not_replaced(registry, monkeypatch):
    """They may be valid; only damaged aliases are reset."""

    def fail(_path, _mode):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    registry.publish("m", write_minimal)
    registry.set_alias("m", "candidate", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail)
        with pytest.raises(RegistryError, match=r"cannot read .*aliases\.json: Input/output error"):
            registry.set_alias("m", "champion", 1)
    assert registry.aliases("m") == {"candidate": 1}


def test_messages_about_a_registry_with_a_short_name_are_not_spoilt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = LocalRegistry(Path())
    with pytest.raises(ModelNotFoundError) as caught:
        here.resolve("m")
    told = here.redact_location(f"{caught.value}. Not m/versions/1/model.safetensors")
    assert told == "there is no model 'm' in registry; models: none. Not m/versions/1/model.safetensors"


@pytest.fixture(scope="module")
def server():
    with s3_server() as server:
        yield server


@pytest.fixture(params=["folder", "memory", "s3"])
def opened(request, tmp_path, server, monkeypatch):
    """Function that opens the same registry, each time with a new cache."""
    name = f"r{abs(hash(request.node.name))}"
    address = {"folder": tmp_path / name, "memory": f"memory://{name}/models"}.get(request.param)
    with using(server, monkeypatch):
        address = address or f"{server.make_bucket('registries')}/models"
        caches = (tmp_path / f"cache-{number}" for number in range(99))
        yield lambda: open_registry(address, create=True, cache=next(caches))


@pytest.fixture
def any_registry(opened):
    return opened()


def test_published_version_is_fetched_by_another_registry(opened):
    published = opened().publish("m", lambda folder: write_minimal(folder, content=b"one"))
    other = opened()
    version = other.resolve("m")
    folder = other.fetch(version)
    assert version.address == published.address == "m@1"
    assert (folder / "weights.bin").read_bytes() == b"one"
    verify_files(folder, other.manifest(version))


def test_an_empty_registry_has_no_model(any_registry):
    assert any_registry.models() == any_registry.published() == any_registry.versions("m") == []
    with pytest.raises(ModelNotFoundError, match="models: none"):
        any_registry.resolve("m")


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


def test_aliases_move_and_go(any_registry):
    for _ in range(2):
        any_registry.publish("m", write_minimal)
    any_registry.set_alias("m", "champion", 1)
    any_registry.set_alias("m", "candidate", 2)
    assert any_registry.aliases("m") == {"champion": 1, "candidate": 2}
    assert any_registry.resolve("m").number == 1
    assert any_registry.resolve("m@candidate").number == 2
    assert any_registry.delete_alias("m", "champion") == 1
    assert any_registry.aliases("m") == {"candidate": 2}
    with pytest.raises(ModelNotFoundError, match="no alias 'champion'"):
        any_registry.delete_alias("m", "champion")


@pytest.mark.parametrize(("name", "alias"), [("nobody", "champion"), ("m", "../x")])
def test_an_alias_that_cannot_be_is_not_found(any_registry, name, alias):
    any_registry.publish("m", write_minimal)
    with pytest.raises(ModelNotFoundError):
        any_registry.delete_alias(name, alias)


def test_an_alias_is_a_name_and_points_to_a_version(any_registry):
    any_registry.publish("m", write_minimal)
    with pytest.raises(InputError, match="read as a version number"):
        any_registry.set_alias("m", "7", 1)
    with pytest.raises(ModelNotFoundError, match="no version 5"):
        any_registry.set_alias("m", "champion", 5)
    assert any_registry.aliases("m") == {}


def test_a_deleted_version_is_gone_and_its_number_stays_used(any_registry):
    for _ in range(2):
        any_registry.publish("m", write_minimal)
    any_registry.delete("m", 2)
    assert any_registry.versions("m") == [1]
    assert [version.address for version in any_registry.published()] == ["m@1"]
    with pytest.raises(ModelNotFoundError, match="no version 2"):
        any_registry.delete("m", 2)
    assert any_registry.publish("m", write_minimal).number == 3


def test_a_version_an_alias_points_to_cannot_be_deleted(any_registry):
    any_registry.publish("m", write_minimal)
    any_registry.set_alias("m", "champion", 1)
    with pytest.raises(InputError, match="m@1 is champion"):
        any_registry.delete("m", 1)
    assert any_registry.versions("m") == [1]


def test_one_file_is_read_without_the_others(any_registry):
    version = any_registry.publish("m", write_minimal)
    assert any_registry.read_file(version, "weights.bin") == b"weights"
    with pytest.raises(ManifestError, match=r"nosuch\.json"):
        any_registry.read_file(version, "nosuch.json")


def test_a_writer_that_fails_publishes_nothing(any_registry):
    def fail(folder):
        (folder / "half").write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        any_registry.publish("m", fail)
    assert any_registry.models() == []


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


def test_a_messages_place_can_be_left_out(any_registry):
    told = any_registry.redact_location(
        f"{any_registry.location}/m: {json.dumps(str(any_registry.work_folder / 'm'))}"
    )
    assert told == 'm: "m"'


class Moving(Catalogue):
    """Catalogue in which a version is published and becomes champion after the first listing."""

    location = "registry"

    def __init__(self):
        self._listings = [[1, 2], [1, 2, 3]]

    def models(self):
        return ["m"]

    def versions(self, _name):
        return self._listings.pop(0) if len(self._listings) > 1 else self._listings[0]

    def aliases(self, _name):
        return {"champion": 3, "gone": 9}

    def version(self, name, number):
        return Version(name, number, Path(name))


def test_a_version_that_an_alias_was_moved_to_meanwhile_is_found():
    assert Moving().resolve("m").number == 3


def test_a_version_that_is_not_there_the_second_time_either_is_not_found():
    with pytest.raises(ModelNotFoundError, match="has no version 9; versions: 1, 2, 3"):
        Moving().resolve("m@gone")
