"""Arrays that processes share: made once, mapped by all, never believed for their name."""

import logging
import os
import shutil

import numpy as np
import pytest

from models.tensor_files import PrivateWeightCache, SharedWeightCache


def make():
    """Two arrays whose sizes are no multiples of a cache line."""
    return {"values": np.arange(77, dtype=np.int8).reshape(7, 11), "scales": np.ones(3, np.float32)}


def refuse():
    raise AssertionError("it lies there already")


@pytest.fixture
def shelf(tmp_path):
    return SharedWeightCache(tmp_path, "key")


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_what_was_made_once_is_not_made_again(shelf, tmp_path):
    first = shelf.get_or_make("a", make)
    again = SharedWeightCache(tmp_path, "key").get_or_make("a", refuse)
    assert same(first, make())
    assert same(again, make())


def test_names_sections_and_keys_keep_arrays_apart(shelf, tmp_path):
    held = [
        part.get_or_make("a", lambda number=number: {"n": np.full(1, number, np.int32)})
        for number, part in enumerate(
            [shelf, shelf.section("b"), shelf.section("c"), SharedWeightCache(tmp_path, "other")]
        )
    ]
    assert [int(arrays["n"][0]) for arrays in held] == [0, 1, 2, 3]
    assert same(shelf.section("b").get_or_make("a", refuse), held[1])


def test_arrays_begin_at_cache_lines(shelf):
    assert all(array.ctypes.data % 64 == 0 for array in shelf.get_or_make("a", make).values())


def test_what_is_written_to_an_array_is_seen_by_nobody_else(shelf):
    mine, other = shelf.get_or_make("a", make), shelf.get_or_make("a", refuse)
    mine["scales"][:] = 9
    assert same(other, make())
    assert same(shelf.get_or_make("a", refuse), make())


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda content: content[:100],
        lambda content: content[:-1],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content.replace(b"[7, 11]", b"[11, 7]"),
        lambda _: b"\xff" * 64,
        lambda content: content.replace(b"sha256", b"sha255"),
    ],
)
def test_a_damaged_file_is_made_anew(shelf, tmp_path, caplog, damage):
    del shelf.get_or_make("a", make)["values"]
    (path,) = tmp_path.glob("key.*")
    path.write_bytes(damage(path.read_bytes()))
    assert same(shelf.get_or_make("a", make), make())
    assert "key.a is damaged and laid anew" in caplog.text
    assert same(shelf.get_or_make("a", refuse), make())


def test_who_has_a_file_keeps_it_when_it_is_made_anew(shelf, tmp_path):
    before = shelf.get_or_make("a", make)
    (path,) = tmp_path.glob("key.*")
    path.unlink()
    after = shelf.get_or_make("a", lambda: {"scales": np.zeros(3, np.float32)})
    assert same(before, make())
    assert not after["scales"].any()


def test_without_room_everybody_has_its_own(shelf, tmp_path, caplog, monkeypatch):
    def full(file, arrays):
        file.write(b"some of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("models.tensor_files.write_sealed", full)
    assert same(shelf.get_or_make("a", make), make())
    assert "cannot be shared between processes: [Errno 28] No space left on device" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_without_a_folder_everybody_has_its_own(shelf, tmp_path, caplog):
    shutil.rmtree(tmp_path)
    assert same(shelf.get_or_make("a", make), make())
    assert caplog.record_tuples[0][1] == logging.WARNING
    assert "weights are not shared between processes" in caplog.text


def test_what_nobody_has_any_more_goes_when_the_next_is_laid(shelf, tmp_path):
    kept = shelf.get_or_make("kept", make)
    shelf.get_or_make("left", make)
    shelf.get_or_make("next", make)
    assert {path.name for path in tmp_path.glob("key.*")} == {"key.kept", "key.next"}
    assert same(kept, make())


def test_what_a_killed_process_did_not_finish_is_written_over(shelf, tmp_path):
    (tmp_path / ".unfinished").write_bytes(b"\0" * 100_000)
    assert same(shelf.get_or_make("a", make), make())
    assert not (tmp_path / ".unfinished").exists()


def test_a_file_that_goes_while_it_is_opened_is_made_anew(shelf, monkeypatch):
    shelf.get_or_make("a", make)
    unlinked = os.stat_result((0o100600, 1, 1, 0, 0, 0, 0, 0, 0, 0))
    with monkeypatch.context() as patch:
        patch.setattr("models.tensor_files.os.fstat", lambda _: unlinked)
        assert same(shelf.get_or_make("a", make), make())


def test_own_memory_keeps_nothing():
    shelf = PrivateWeightCache().section("a")
    assert shelf.get_or_make("b", make)["values"] is not shelf.get_or_make("b", make)["values"]
