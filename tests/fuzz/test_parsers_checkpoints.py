"""Checkpoints with an error in a file whose hash is right: served correctly, or refused by name."""

import functools
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.cache.config import CacheConfig
from models.checkpoint.load import CheckpointDescription, load_checkpoint, write_checkpoint
from models.checkpoint.manifest import (
    MANIFEST_FILE,
    file_entries,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from models.tensor_files import map_hashed_tensors, write_hashed_tensors
from tests.fuzz.damage import any_bytes, ask_model, damaged, damaged_json
from tests.fuzz.parsing import Parser, ParserProcess, fuzz
from tests.support import families

DESCRIPTION = CheckpointDescription(
    created="2026-01-01T00:00:00+00:00",
    metrics={"valid": {"perplexity": 10.0}, "int8": {"cost": 0.001}},
    provenance={"seed": 1},
    golden=[[5, 6, 7], [9]],
    card={"MODEL_CARD.md": b"# model\n"},
)
PARTS = {"mixture": ("ngram", "lstm"), "cache": ("lstm",)}
FILES = {
    "ngram": ("config.json", "golden.json", "metrics.json", "tokenizer.json", "ngram.bin"),
    "lstm": ("config.json", "golden.json", "metrics.json", "model.safetensors"),
    "adaptive": ("config.json", "model.safetensors"),
    "mixture": ("config.json", "parts/1/model.safetensors", "parts/0/manifest.json"),
    "cache": ("config.json",),
}
CASES = [(family, name) for family, names in FILES.items() for name in names]
HEADER_WORDS = [
    *(
        b"BF16",
        b"F64",
        b"F8_E4M3",
        b"F4",
        b"BOOL",
        b"I64",
        b'"__metadata__"',
        b'"shape":[]',
        b'"data_offsets":[0,0]',
    ),
    *(b'"shape":[0]', b"-1", b"[1099511627776]", b"C64"),
]
CONFIG_VALUES = [
    "gru",
    "feed-forward",
    "adaptive",
    "additive",
    17,
    8192,
    16,
    [7, 12],
    [0.5, 0.5],
    [-1, 2],
    "continuous",
]


def load_and_ask(path: Path) -> None:
    """Load a checkpoint as for serving, in both precisions, after correcting the hashes."""
    folder = path.parent
    while not (folder / "golden.json").is_file() or folder.parent.name == "parts":
        folder = folder.parent
    manifest = read_manifest(folder)
    write_manifest(folder, manifest.model_copy(update={"files": file_entries(folder)}))
    for precision in ("float32", "auto"):
        checkpoint = load_checkpoint(folder, precision=precision)
        ask_model(
            checkpoint.model, normalised=manifest.family != "ngram" and checkpoint.precision == "float32"
        )
        checkpoint.tokenizer.decode(checkpoint.tokenizer.encode("w1 w2 of w3"))
        json.dumps(checkpoint.metrics, allow_nan=False, ensure_ascii=False).encode()


def read_one_manifest(path: Path) -> None:
    """Read a manifest, and check its list of files."""
    manifest = parse_manifest(path.read_bytes(), path)
    assert manifest == read_manifest(path.parent)
    assert all(not Path(name).is_absolute() and ".." not in name.split("/") for name in manifest.files)


def map_shelf(path: Path) -> None:
    """Map packed weights as processes share them; a damaged file is never used."""
    with path.open("rb") as file:
        for array in map_hashed_tensors(file).values():
            array.sum()


@functools.cache
def checkpoints():
    """Write a checkpoint of each family to a folder, which is removed with the last reference."""
    keeper = tempfile.TemporaryDirectory()
    folder = Path(keeper.name)
    for name in ("ngram", "lstm", *(n for n in FILES if n not in {"ngram", "lstm"})):
        (folder / name).mkdir()
        model = families.model(name)
        parts = [folder / part for part in PARTS.get(name, ())]
        write_checkpoint(folder / name, model, families.tokenizer(), DESCRIPTION, parts=parts)
    return keeper, folder


@pytest.fixture(scope="module")
def process():
    with ParserProcess(__name__) as asked:
        yield asked


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def checkpoint_file(request, process, tmp_path_factory):
    family, name = request.param
    copy = tmp_path_factory.mktemp("checkpoint") / family
    shutil.copytree(checkpoints()[1] / family, copy)
    return Parser(process, "load_and_ask", copy / name, (copy / name).read_bytes())


@fuzz
@given(st.data())
def test_files_with_right_hashes(checkpoint_file, data):
    good = st.just(checkpoint_file.good)
    ways = [damaged(good, HEADER_WORDS), any_bytes()]
    if checkpoint_file.path.suffix == ".json":
        ways.append(damaged_json(good.map(json.loads), CONFIG_VALUES))
    checkpoint_file.ask(data.draw(st.one_of(ways), label="content"), named="checkpoint")


@pytest.fixture(scope="module")
def manifest(process, tmp_path_factory):
    good = (checkpoints()[1] / "lstm" / MANIFEST_FILE).read_bytes()
    path = tmp_path_factory.mktemp("manifest") / MANIFEST_FILE
    return Parser(process, "read_one_manifest", path, good)


def sealed(fields):
    """Return a manifest with these fields and the right checksum."""
    if isinstance(fields, dict):
        fields = {key: value for key, value in fields.items() if key != "checksum"}
        fields["checksum"] = hashlib.sha256(canonical(fields)).hexdigest()
    return canonical(fields)


def canonical(fields):
    """Return the canonical form of a manifest."""
    return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()


@fuzz
@given(st.data())
def test_manifests(manifest, data):
    good = st.just(manifest.good)
    said = damaged_json(good.map(json.loads), ["../x", "lstm", 3, "0" * 64])
    ways = [damaged(good), any_bytes(), said.map(json.loads).map(sealed)]
    manifest.ask(data.draw(st.one_of(ways), label="content"))


@pytest.fixture(scope="module")
def shelf(process, tmp_path_factory):
    path = tmp_path_factory.mktemp("shelf") / "packed"
    with path.open("w+b") as file:
        write_hashed_tensors(
            file, {"weights": np.arange(256, dtype=np.uint8), "scales": np.ones(7, np.float32)}
        )
    return Parser(process, "map_shelf", path, path.read_bytes())


@fuzz
@given(st.data())
def test_weights_on_the_shelf(shelf, data):
    content = data.draw(st.one_of(damaged(st.just(shelf.good), HEADER_WORDS), any_bytes()), label="content")
    assert shelf.ask(content, named="") == ("loaded" if content == shelf.good else "refused")


def test_a_manifest_that_is_nested_too_deeply_to_be_written_is_refused(manifest):
    fields = manifest.good.replace(b'"created": ', b'"x": ' + b"[" * 900 + b"]" * 900 + b', "created": ')
    assert manifest.ask(fields) == "refused"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("golden.json", json.dumps({"sequences": [[5] * 200_000, *[[]] * 20_000]}).encode()),
        ("metrics.json", b'{"valid": {"perplexity": NaN}}'),
        ("metrics.json", b'{"valid": {"perplexity": 1e999}}'),
        ("metrics.json", b'{"\\ud800": 1}'),
    ],
    ids=["as wide as it is high", "no number", "infinite", "no text"],
)
def test_content_that_was_once_loaded_is_refused(process, tmp_path, name, content):
    copy = tmp_path / "lstm"
    shutil.copytree(checkpoints()[1] / "lstm", copy)
    parser = Parser(process, "load_and_ask", copy / name, (copy / name).read_bytes())
    if name == "golden.json":
        content = json.dumps({**json.loads(parser.good), **json.loads(content)}).encode()
    assert parser.ask(content) == "refused"


@pytest.mark.parametrize("name", ["flatness", "half_life", "weight", "prior"])
def test_a_number_beyond_all_bounds_is_no_setting_of_a_cache(name):
    with pytest.raises(ValidationError, match=f"(?s)CacheConfig\n{name}.*valid number"):
        CacheConfig(**{"kind": "continuous", "window": 6, "half_life": 4.0, "weight": 0.2, name: 10**400})
