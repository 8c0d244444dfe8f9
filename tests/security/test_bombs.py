"""What is small and becomes large: bodies and corpora that unpack to gigabytes, JSON that nests without end."""

import gzip
import lzma
import tracemalloc

import pytest
import zstandard

from models.errors import FormatError
from models.ngram.arpa_reader import read_arpa
from models.reranking.formats.format import read_blocks
from training.corpus import read_corpus
from training.progress import Silent

MIB = 1 << 20
PACKERS = {
    "gz": lambda data: gzip.compress(data, 9),
    "xz": lambda data: lzma.compress(data, preset=1),
    "zst": zstandard.ZstdCompressor().compress,
}
BOMB_BYTES = 20 * MIB
FILLINGS = {"one line": b"a", "lines": b"a line of text " * 60 + b"\n", "zeros": b"\0"}
"""What a bomb is filled with, again and again."""


@pytest.fixture(params=PACKERS)
def pack(request):
    return PACKERS[request.param]


def bomb(pack, filling, head=b""):
    return pack(head + filling * (BOMB_BYTES // len(filling)))


def peak_bytes(work, match="over 250 times its size"):
    """The memory that a piece of work takes at most, while it fails as it must."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=match):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("filling", FILLINGS)
def test_a_corpus_that_unpacks_without_end_is_refused(tmp_path, pack, filling):
    path = tmp_path / "corpus"
    path.write_bytes(bomb(pack, FILLINGS[filling]))
    assert path.stat().st_size < BOMB_BYTES / 250
    assert peak_bytes(lambda: read_corpus([path], unit="line", progress=Silent())) < 128 * MIB


def test_an_arpa_file_that_unpacks_without_end_is_refused(tmp_path, pack):
    path = tmp_path / "lm.arpa"
    path.write_bytes(bomb(pack, b"1", head=b"\\data\\\nngram 1="))
    assert peak_bytes(lambda: read_arpa(path), match="the line is longer") < 64 * MIB


def test_lists_that_unpack_without_end_are_refused(tmp_path, pack):
    path = tmp_path / "lists"
    path.write_bytes(bomb(pack, FILLINGS["lines"]))
    assert peak_bytes(lambda: sum(len(block) for block in read_blocks(path, "lists"))) < 64 * MIB


@pytest.mark.parametrize(
    "encoding", ["gzip", "deflate", "br", "zstd", "x-gzip", "gzip, gzip", "\u00e9" * 100]
)
def test_bodies_are_never_unpacked(client, encoding):
    packed = gzip.compress(b'{"context": "' + b"the " * MIB + b'"}')
    headers = {"content-encoding": encoding.encode("latin-1"), "content-type": "application/json"}
    answer = client.post("/v1/next-token", content=packed, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_encoding")
    assert "Content-Encoding" in answer.json()["error"]["message"]


def test_a_packed_body_that_does_not_say_so_is_no_json(client):
    answer = client.post("/v1/next-token", content=gzip.compress(b'{"context": "the"}'))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")


@pytest.mark.parametrize("opening", [b"[", b'{"context":', b'{"a":['])
@pytest.mark.parametrize("path", ["/v1/next-token", "/v1/rerank", "/v1/rerank/tune", "/admin/profiles/a"])
def test_nesting_is_bounded(client, path, opening):
    method = "PUT" if path.startswith("/admin") else "POST"
    answer = client.request(method, path, content=opening * 200_000)
    assert answer.status_code == 400
    assert len(answer.content) < 2000


def test_a_number_of_thousands_of_digits_is_refused(client):
    for digits in (400, 4299, 5000, 1_000_000):
        body = b'{"context": "the", "top_k": ' + b"9" * digits + b"}"
        answer = client.post("/v1/next-token", content=body)
        assert answer.status_code == 400
        assert len(answer.content) < 2000
