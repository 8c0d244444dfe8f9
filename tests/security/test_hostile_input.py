"""Path traversal through names; decompression bombs and deep JSON."""

import gzip
import lzma
import tracemalloc
from itertools import product

import pytest
import zstandard

from models.checkpoint.fsspec_store import MemoryStore
from models.checkpoint.registry import LocalRegistry
from models.checkpoint.remote_registry import RemoteRegistry
from models.checkpoint.stores import StoreTimeouts
from models.errors import DomainError, FormatError, InputError
from models.ngram.arpa_reader import read_arpa
from models.reranking.formats.format import read_blocks
from models.reranking.ranking import ProfileStore
from tests.security.conftest import CANARY
from tests.support.http import asked
from training.corpus import read_corpus
from training.progress import Progress

SPELLINGS = {
    "dots": b"..",
    "dots encoded": b"%2e%2e",
    "dots encoded twice": b"%252e%252e",
    "up": b"../../secret.md",
    "up encoded": b"..%2f..%2f..%2f..%2f..%2fsecret.md",
    "up encoded twice": b"..%252f..%252fsecret.md",
    "up overlong": b"..%c0%af..%c0%afsecret.md",
    "backslash": b"..%5c..%5csecret.md",
    "full-width dots": b"%EF%BC%8E%EF%BC%8E%EF%BC%8Fsecret.md",
    "one-dot leader": b"%E2%80%A4%E2%80%A4/secret.md",
    "absolute": b"/etc/passwd",
    "absolute encoded": b"%2fetc%2fpasswd",
    "NUL": b"MODEL_CARD.md%00.png",
    "line end": b"a%0d%0ax-injected:%20yes",
    "hidden": b".profiles",
    "temporary": b".tmp-1",
    "home": b"~root",
    "stream": b"file:%2f%2f%2fetc%2fpasswd",
    "long": b"a" * 5000,
    "long up": b"..%2f" * 1000,
}
PROFILE, ALIAS, WORDS = b'{"weights": {"lm": 1.0}}', b'{"version": 1}', b'{"words": []}'
PLACES = [
    ("GET", b"/static/%s", b""),
    ("GET", b"/v1/models/%s", b""),
    ("GET", b"/v1/models/%s/card", b""),
    ("GET", b"/v1/models/mixture@%s/card", b""),
    ("GET", b"/v1/models/mixture/files/%s", b""),
    ("GET", b"/admin/profiles/%s", b""),
    ("PUT", b"/admin/profiles/%s", PROFILE),
    ("DELETE", b"/admin/profiles/%s", b""),
    ("PUT", b"/admin/models/%s/aliases/a", ALIAS),
    ("DELETE", b"/admin/models/%s/aliases/a", b""),
    ("PUT", b"/admin/models/mixture/aliases/%s", ALIAS),
    ("DELETE", b"/admin/models/mixture/aliases/%s", b""),
    ("PUT", b"/v1/autocomplete/users/%s", WORDS),
    ("GET", b"/v1/autocomplete/users/%s", b""),
]
NAMES = (
    "..",
    "../x",
    "..\\x",
    "/etc/passwd",
    "a/b",
    "a\0b",
    "a\nb",
    ".hidden",
    "",
    "a" * 300,
    "\uff0e\uff0e",
    "\uff41",
    "~",
)


def everything_under(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def request(locked, place, name):
    """Send a request whose path contains a name, unescaped; return the reply."""
    method, pattern, body = place
    head = b"%s %s HTTP/1.1\r\nhost: a\r\nauthorization: Bearer %s\r\ncontent-length: %d\r\n\r\n"
    sent = head % (method.encode(), pattern % name, locked.secrets[None].encode(), len(body))
    return asked(locked.url, sent + body)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0]} {place[1].decode()}")
def test_a_path_leads_nowhere_else(locked, place):
    before = everything_under(locked.root.parent)
    for name in SPELLINGS.values():
        answer = request(locked, place, name)
        assert 400 <= answer.status < 500, name
        for secret in (CANARY, "root:", str(locked.root)):
            assert secret.encode() not in answer.body
    assert everything_under(locked.root.parent) == before


@pytest.mark.parametrize(
    "place", [place for place in PLACES if place[2]], ids=lambda place: place[1].decode()
)
def test_a_proper_name_is_what_the_others_lack(locked, place):
    assert request(locked, place, b"mixture").status == 200


@pytest.mark.parametrize("name", ["private.bin", "manifest.json", "config.json", "golden.json"])
def test_files_of_a_model_that_are_not_for_people_are_not_told(client, locked, name):
    assert (locked.root / "mixture" / "versions" / "1" / name).is_file()
    assert client.get(f"/v1/models/mixture/files/{name}").status_code == 404


@pytest.mark.parametrize(
    ("path", "field", "rest"),
    [
        ("/v1/score", "model", {"texts": ["the"]}),
        ("/admin/models/load", "model", {}),
        ("/admin/models/unload", "model", {}),
        ("/v1/rerank", "profile", {"candidates": ["the"]}),
        ("/v1/autocomplete", "session", {"text": "the"}),
        ("/v1/autocomplete", "user", {"text": "the"}),
        ("/v1/quality", "against", {"texts": ["the"]}),
    ],
)
def test_a_name_in_a_body_leads_nowhere_else(client, locked, path, field, rest):
    before = everything_under(locked.root.parent)
    for name in NAMES:
        answer = client.post(path, json={**rest, field: name})
        assert answer.status_code in {400, 404}, name
        assert str(locked.root) not in answer.text
    assert everything_under(locked.root.parent) == before


def registries(tmp_path):
    store = MemoryStore(f"memory://{tmp_path.name}", StoreTimeouts())
    return LocalRegistry(tmp_path / "registry", create=True), RemoteRegistry(store, cache=tmp_path / "cache")


def test_no_registry_takes_such_a_name(tmp_path):
    before = None
    for registry, name in product(registries(tmp_path), NAMES):
        before = before or everything_under(tmp_path)
        with pytest.raises(InputError):
            registry.publish(name, lambda _: None)
        for ask in (registry.resolve, lambda bad, by=registry: by.set_alias(bad, "a", 1)):
            with pytest.raises(DomainError):
                ask(name)
    assert everything_under(tmp_path) == before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", ["folder", "memory://names/registry"])
def test_no_profile_has_such_a_name(tmp_path, where, name):
    store = ProfileStore(tmp_path / "registry" if where == "folder" else where)
    for ask in (store.read, store.delete):
        with pytest.raises(InputError, match="profile is"):
            ask(name)
    assert not list(tmp_path.rglob("*"))


def test_a_folder_with_markup_for_a_name_is_no_model(registry):
    (registry.root / "<img src=x>" / "versions" / "1").mkdir(parents=True)
    assert "<img src=x>" not in registry.models()


MIB = 1 << 20
PACKERS = {
    "gz": lambda data: gzip.compress(data, 9),
    "xz": lambda data: lzma.compress(data, preset=1),
    "zst": zstandard.ZstdCompressor().compress,
}
BOMB_BYTES = 20 * MIB
FILLINGS = {"one line": b"a", "lines": b"a line of text " * 60 + b"\n", "zeros": b"\0"}
"""Repeated contents of decompression bombs."""


@pytest.fixture(params=PACKERS)
def pack(request):
    return PACKERS[request.param]


def bomb(pack, filling, head=b""):
    return pack(head + filling * (BOMB_BYTES // len(filling)))


def peak_bytes(work, match="over 250 times its size"):
    """Return the peak memory of some work that must fail."""
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
    assert peak_bytes(lambda: read_corpus([path], unit="line", progress=Progress())) < 128 * MIB


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
