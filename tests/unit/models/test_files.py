"""Compressed files, and arrays shared by processes."""

import bz2
import contextlib
import gzip
import io
import logging
import lzma
import os
import random
import shutil
import time

import numpy as np
import pytest
import zstandard

from models import files
from models.errors import FormatError
from models.files import DECOMPRESSION_ERRORS, MAX_EXPANSION, ExpansionError, atomic_writer, decompressed
from models.tensor_files import PackedWeightCache

CONTENT = random.Random(0).randbytes(5000) * 20
PACKERS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
}


def read(data, size=-1):
    stream = decompressed(io.BufferedReader(io.BytesIO(data)))
    return b"".join(iter(lambda: stream.read(size), b""))


@pytest.mark.parametrize("suffix", ["", *PACKERS])
def test_written_file_is_read(tmp_path, suffix):
    with atomic_writer(tmp_path / f"f{suffix}") as write:
        write(CONTENT[:7])
        write(CONTENT[7:])
    data = (tmp_path / f"f{suffix}").read_bytes()
    assert read(data) == CONTENT
    assert not suffix or data != CONTENT


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("size", [1 << 20, 1000])
def test_several_parts_are_one_file(suffix, size):
    packed = PACKERS[suffix](CONTENT)
    assert read(packed * 2 + PACKERS[suffix](b""), size) == CONTENT * 2


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("lost", [1, 30, 3000])
def test_files_that_were_cut_off_are_seen(suffix, lost):
    with pytest.raises(DECOMPRESSION_ERRORS):
        read(PACKERS[suffix](CONTENT)[:-lost])


@pytest.mark.parametrize("suffix", PACKERS)
def test_damaged_files_are_seen(suffix):
    packed = bytearray(PACKERS[suffix](CONTENT))
    packed[10:14] = b"\xff\xff\xff\xff"
    with pytest.raises(OSError if suffix == ".bz2" else DECOMPRESSION_ERRORS):
        read(bytes(packed))


def test_a_bomb_is_unpacked_bit_by_bit():
    stream = decompressed(io.BufferedReader(io.BytesIO(PACKERS[".zst"](b"\0" * (1 << 28)))))
    assert len(stream.read(1000)) == 1000


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize(("size", "is_text"), [(MAX_EXPANSION // 3, True), (MAX_EXPANSION * 3, False)])
def test_compressed_file_beyond_the_maximum_expansion_is_refused(monkeypatch, suffix, size, is_text):
    monkeypatch.setattr(files, "_UNCHECKED_BYTES", 0)
    packed = PACKERS[suffix](CONTENT[:5000])
    padded = packed + PACKERS[suffix](b"a" * (5000 * size - 5000))
    if is_text:
        assert len(read(padded)) == 5000 * size
    else:
        with pytest.raises(ExpansionError, match="over 250 times its size"):
            read(padded)


def test_a_failure_leaves_nothing_behind(tmp_path):
    with pytest.raises(TypeError), atomic_writer(tmp_path / "f.gz") as write:
        write("no bytes")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_written_over(tmp_path):
    with pytest.raises(FormatError, match="not a file"), atomic_writer(tmp_path):
        pass


@pytest.mark.parametrize("name", ["f/below a file", "f" * 256])
def test_a_path_that_no_file_can_have_is_refused(tmp_path, name):
    (tmp_path / "f").touch()
    with (
        pytest.raises(FormatError, match=rf"{name}: cannot be written: (Not a dir|File name)"),
        atomic_writer(tmp_path / name),
    ):
        pass


def test_a_name_may_be_as_long_as_names_can_be(tmp_path):
    path = tmp_path / ("f" * 255)
    with atomic_writer(path) as write:
        write(CONTENT)
    assert path.read_bytes() == CONTENT


def test_a_stream_is_not_closed_while_it_is_written_to(tmp_path, monkeypatch):
    class Slow(contextlib.AbstractContextManager):
        def write(self, _):
            time.sleep(0.2)
            done.append("written")

        def __exit__(self, *_):
            done.append("closed")

    def interrupted():
        with atomic_writer(tmp_path / "f") as write:
            write(CONTENT)
            raise KeyboardInterrupt

    done = []
    monkeypatch.setattr(files, "_compressor", lambda *_: Slow())
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["written", "closed"]


def make():
    """Two arrays whose sizes are not multiples of a cache line."""
    return {"values": np.arange(77, dtype=np.int8).reshape(7, 11), "scales": np.ones(3, np.float32)}


def refuse():
    raise AssertionError("it lies there already")


@pytest.fixture
def shelf(tmp_path):
    return PackedWeightCache(tmp_path, "key")


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_cached_arrays_are_reused(shelf, tmp_path):
    first = shelf.get_or_make("a", make)
    again = PackedWeightCache(tmp_path, "key").get_or_make("a", refuse)
    assert same(first, make())
    assert same(again, make())


def test_names_and_keys_keep_arrays_apart(shelf, tmp_path):
    places = [(shelf, "a"), (shelf, "b"), (PackedWeightCache(tmp_path, "other"), "a")]
    held = [
        part.get_or_make(name, lambda number=number: {"n": np.full(1, number, np.int32)})
        for number, (part, name) in enumerate(places)
    ]
    assert [int(arrays["n"][0]) for arrays in held] == [0, 1, 2]
    assert same(shelf.get_or_make("b", refuse), held[1])


def test_arrays_begin_at_cache_lines(shelf):
    assert all(array.ctypes.data % 64 == 0 for array in shelf.get_or_make("a", make).values())


def test_writes_to_a_mapped_array_are_private(shelf):
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
    assert "key.a is damaged and rebuilt" in caplog.text
    assert same(shelf.get_or_make("a", refuse), make())


def test_mapped_arrays_survive_a_replaced_file(shelf, tmp_path):
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

    monkeypatch.setattr("models.tensor_files.write_hashed_tensors", full)
    assert same(shelf.get_or_make("a", make), make())
    assert "cannot be shared between processes: [Errno 28] No space left on device" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_without_a_folder_everybody_has_its_own(shelf, tmp_path, caplog):
    shutil.rmtree(tmp_path)
    assert same(shelf.get_or_make("a", make), make())
    assert caplog.record_tuples[0][1] == logging.WARNING
    assert "weights are not shared between processes" in caplog.text


def test_unused_files_are_removed_with_the_next_write(shelf, tmp_path):
    kept = shelf.get_or_make("kept", make)
    PackedWeightCache(tmp_path, "key").get_or_make("left", make)
    shelf.get_or_make("next", make)
    assert {path.name for path in tmp_path.glob("key.*")} == {"key.kept", "key.next"}
    assert same(kept, make())


def test_unfinished_file_of_a_killed_process_is_overwritten(shelf, tmp_path):
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
    shelf = PackedWeightCache()
    assert shelf.get_or_make("b", make)["values"] is not shelf.get_or_make("b", make)["values"]


def test_a_text_may_begin_as_bzip2_does():
    assert read(b"BZhang Wei said\n") == b"BZhang Wei said\n"
    assert [read(bz2.compress(text)) for text in (b"", b"said\n")] == [b"", b"said\n"]
