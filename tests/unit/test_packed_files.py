"""Packed files, read by their first bytes and written by their names' endings."""

import contextlib
import gzip
import io
import lzma
import random
import time

import pytest
import zstandard

from models import files
from models.errors import FormatError
from models.files import DECOMPRESSION_ERRORS, MAX_EXPANSION, ExpansionError, atomic_writer, decompressed

CONTENT = random.Random(0).randbytes(5000) * 20
PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}


def read(data, size=-1):
    stream = decompressed(io.BufferedReader(io.BytesIO(data)))
    return b"".join(iter(lambda: stream.read(size), b""))


@pytest.mark.parametrize("suffix", ["", *PACKERS])
def test_what_is_written_is_read(tmp_path, suffix):
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
    with pytest.raises(DECOMPRESSION_ERRORS):
        read(bytes(packed))


def test_a_bomb_is_unpacked_bit_by_bit():
    stream = decompressed(io.BufferedReader(io.BytesIO(PACKERS[".zst"](b"\0" * (1 << 28)))))
    assert len(stream.read(1000)) == 1000


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize(("size", "is_text"), [(MAX_EXPANSION // 3, True), (MAX_EXPANSION * 3, False)])
def test_what_no_text_shrinks_to_is_refused(monkeypatch, suffix, size, is_text):
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
    with pytest.raises(FormatError, match="no file"), atomic_writer(tmp_path):
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
