"""Copies of versions: verified in place, shared, and removed with their holder."""

import os
import shutil

import pytest

from models.checkpoint import copies
from models.checkpoint.copies import Copies
from models.checkpoint.manifest import read_manifest
from models.errors import IntegrityError
from tests.support.checkpoints import write_minimal


@pytest.fixture
def version(tmp_path):
    folder = tmp_path / "version"
    folder.mkdir()
    write_minimal(folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "copies"


def take(folder, version):
    return Copies(folder).take(version, read_manifest(version))


def test_a_copy_stays_what_it_was_whatever_happens_to_the_version(folder, version):
    copy = take(folder, version)
    (version / "weights.bin").write_bytes(b"")
    assert (copy.path / "weights.bin").read_bytes() == b"weights"


def test_it_is_shared_and_removed_by_the_last_who_gives_it_back(folder, version):
    first, second = take(folder, version), take(folder, version)
    assert first.path == second.path
    first.release()
    first.release()
    assert second.path.is_dir()
    second.release()
    assert not list(folder.iterdir())


def test_changed_file_is_not_copied_and_is_named_by_its_path(folder, version):
    (version / "weights.bin").write_bytes(b"weig")
    with pytest.raises(IntegrityError, match=rf"{version}/weights\.bin has 4 bytes, but 7 were published"):
        take(folder, version)
    (version / "weights.bin").unlink()
    with pytest.raises(IntegrityError, match=rf"{version}/weights\.bin cannot be read"):
        take(folder, version)
    assert not list(folder.iterdir())


def test_a_copy_that_was_damaged_is_made_anew(folder, version):
    copy = take(folder, version)
    (copy.path / "weights.bin").write_bytes(b"Weights")
    assert (take(folder, version).path / "weights.bin").read_bytes() == b"weights"


def test_without_room_there_is_none_and_the_log_says_so(folder, version, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies, "_copy", full)
    assert take(folder, version) is None
    assert "(No space left on device): overwriting its files would kill this process" in caplog.text
    assert not list(folder.iterdir())


def test_reflinks_replace_copies_where_supported(folder, version, monkeypatch):
    """Simulates the block sharing of Btrfs and XFS."""

    def clone(to, request, source):
        assert request == copies._FICLONE
        with open(source, "rb", closefd=False) as file:
            to.write(file.read())
            to.flush()

    monkeypatch.setattr(copies.fcntl, "ioctl", clone)
    monkeypatch.setattr(copies, "_CHUNK_BYTES", None)  # makes any read fail
    assert (take(folder, version).path / "weights.bin").read_bytes() == b"weights"


def test_pipe_or_oversized_file_is_refused_before_it_is_read(folder, version):
    """A pipe would never end, and a large file would fill the disk."""
    name = next(iter(read_manifest(version).files))
    for make in (os.mkfifo, lambda path: path.write_bytes(bytes(1 << 20))):
        (version / name).unlink()
        make(version / name)
        with pytest.raises(IntegrityError, match=f"{name} has .* bytes, .* were published"):
            take(folder, version)


def test_a_damaged_copy_that_another_process_has_replaced_stays(folder, version):
    first = take(folder, version)
    shutil.rmtree(first.path)
    second = take(folder, version)
    first.discard()
    assert second.path.is_dir()
