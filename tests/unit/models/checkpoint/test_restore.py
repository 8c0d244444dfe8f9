"""Restoring a backup: missing and damaged files are repaired, differing ones only on request."""

import resource
import shutil
import uuid
from pathlib import Path

import pytest

from models.checking.error_model import CalibrationStore, ErrorTableStore
from models.checkpoint import folders
from models.checkpoint import restore as checkpoint_restore
from models.checkpoint.manifest import MANIFEST_FILE, read_manifest, verify_files
from models.checkpoint.registry import LocalRegistry, open_registry, open_store
from models.errors import InputError, IntegrityError, ManifestError, RegistryError
from models.reranking.ranking import ProfileStore
from tests.support.checkpoints import write_minimal
from tests.unit.models.checkpoint.test_documents import profile


@pytest.fixture
def registry(tmp_path):
    """A registry with two versions, an alias and a profile."""
    made = LocalRegistry(tmp_path / "registry", create=True)
    for number in (1, 2):
        made.publish("m", lambda folder, number=number: write_minimal(folder, b"%d" % number * 9))
    made.set_alias("m", "champion", 1)
    ProfileStore(made.root).write(profile("p"))
    return made


@pytest.fixture
def backup(registry, tmp_path):
    return LocalRegistry(shutil.copytree(registry.root, tmp_path / "backup"))


def restore(backup, target, differing="refuse"):
    documents = ProfileStore, CalibrationStore, ErrorTableStore
    return checkpoint_restore.restore_backup(
        backup, target, documents, differing=differing, progress=lambda *_: None
    )


def publish(registry, name):
    return registry.publish(name, lambda folder: write_minimal(folder, b"x"))


def damage(path, content=b""):
    path.unlink()
    path.write_bytes(content)


def test_a_whole_registry_comes_back(registry, backup):
    shutil.rmtree(registry.root)
    target = LocalRegistry(registry.root, create=True)
    assert restore(backup, target).restored == ["m@1", "m@2", "aliases of m", ".profiles/p.json"]
    assert target.resolve("m").number == 1
    assert ProfileStore(target.root).read("p") == profile("p")
    assert restore(backup, target) == ([], [], ["m@1", "m@2", "aliases of m", ".profiles/p.json"])


@pytest.mark.parametrize("name", ["weights.bin", MANIFEST_FILE])
def test_damaged_items_are_restored_and_intact_ones_untouched(registry, backup, name):
    untouched = registry.version("m", 1).path.stat().st_ino
    path = registry.version("m", 2).path
    damage(path / name, b"cut")
    damage(registry.root / "m" / "aliases.json", b"{")
    assert restore(backup, registry).restored == ["m@2", "aliases of m"]
    verify_files(path, read_manifest(path))
    assert registry.version("m", 1).path.stat().st_ino == untouched
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["1", "2"]


def test_differing_items_are_refused_kept_or_replaced_by_policy(registry, backup):
    shutil.rmtree(registry.version("m", 1).path)
    registry.set_alias("m", "champion", 2)
    with pytest.raises(
        InputError, match="nothing was restored, because these differ from the backup: aliases of m;"
    ):
        restore(backup, registry)
    assert registry.versions("m") == [2]
    assert restore(backup, registry, "keep")[:2] == (["m@1"], ["aliases of m"])
    assert registry.aliases("m") == {"champion": 2}
    assert restore(backup, registry, "replace").restored == ["aliases of m"]
    assert registry.aliases("m") == {"champion": 1}


@pytest.mark.parametrize("schema_version", [1, 99])
def test_another_version_of_the_same_number_is_not_taken_for_damage(registry, backup, schema_version):
    path = registry.version("m", 2).path
    shutil.rmtree(path)
    path.mkdir()
    write_minimal(path, b"else", schema_version=schema_version, reader_version=schema_version)
    with pytest.raises(InputError, match="these differ from the backup: m@2"):
        restore(backup, registry)


def test_a_damaged_backup_changes_nothing(registry, backup):
    for number in (1, 2):
        damage(registry.version("m", number).path / "weights.bin")
    damage(backup.version("m", 2).path / "weights.bin", b"999999999")
    with pytest.raises(IntegrityError, match=r"backup/m/versions/2/weights\.bin was changed"):
        restore(backup, registry)
    assert (registry.version("m", 1).path / "weights.bin").read_bytes() == b""
    assert not list(registry.root.glob(f"m/versions/{folders.TEMPORARY_PREFIX}*"))


def test_numbers_that_were_deleted_in_the_backup_are_not_used_again(registry, backup, tmp_path):
    backup.publish("m", write_minimal)
    backup.delete("m", 3)
    target = LocalRegistry(tmp_path / "new", create=True)
    restore(backup, target)
    assert target.publish("m", write_minimal).number == 4


def test_a_backup_that_holds_nothing_and_a_target_in_a_store_are_refused(registry, tmp_path):
    with pytest.raises(RegistryError, match="holds no model"):
        restore(LocalRegistry(tmp_path), registry)
    with pytest.raises(InputError, match="writes only to registries in folders"):
        restore(registry, open_registry("memory://target", cache=tmp_path / "cache"))


def test_the_command_says_what_it_did(registry, backup, monkeypatch, capsys):
    from tests.support.services import typed_line

    code, out, _ = typed_line(
        capsys, monkeypatch, "models", "restore", backup.root, "--registry", registry.root
    )
    assert (code, out) == (0, "already present: m@1, m@2, aliases of m, .profiles/p.json\n")


def test_the_default_comes_back(registry, backup):
    publish(backup, "a")
    backup.set_default("m")
    shutil.rmtree(registry.root)
    target = LocalRegistry(registry.root, create=True)
    assert "the default model" in restore(backup, target).restored
    assert target.default() == "m"


def test_another_name_in_the_backup_does_not_change_the_default(registry, backup):
    publish(backup, "a")
    assert restore(backup, registry).restored == ["a@1"]
    assert registry.default() == "m"


def test_a_default_that_was_deleted_is_not_restored(registry, backup):
    (backup.root / ".default").write_text("gone\n")
    shutil.rmtree(registry.root)
    target = LocalRegistry(registry.root, create=True)
    assert ".profiles/p.json" in restore(backup, target).restored
    assert target.default() is None


def test_keys_of_a_bucket_lead_nowhere_else(registry, tmp_path):
    bucket = open_registry(f"memory://{uuid.uuid4().hex}", create=True)
    publish(bucket, "m2")
    documents = open_store(bucket.location)
    documents.put(".profiles/a/../../../evil/keys", b"x")
    documents.put(".profiles/b/../../../evil.json", b"x")
    assert restore(bucket, registry).restored == ["m2@1"]
    assert not list(tmp_path.rglob("*evil*"))


def test_a_profile_that_is_none_is_not_cut_off(registry, backup):
    (backup.root / ".profiles" / "big.json").write_bytes(bytes(3 << 20))
    with pytest.raises(ManifestError, match=r"big\.json has more than 1048576 bytes"):
        restore(backup, registry)


def test_many_versions_need_few_descriptors(registry, backup):
    for _ in range(60):
        publish(backup, "m")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 30, limits[1]))
    try:
        assert len(restore(backup, registry).restored) == 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
