"""A bit flipped anywhere in a checkpoint of any kind: it is refused by name, and what served before goes on serving."""

import random
import shutil

import pytest
from safetensors.numpy import load_file, save_file

from models.checkpoint.load import load_checkpoint
from models.checkpoint.manifest import file_entries, read_manifest, write_manifest
from models.checkpoint.registry import LocalRegistry, open_registry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.errors import CheckpointError
from service.engine.model_host import ModelHost
from service.local import ask
from tests import families
from tests.object_stores import Clock

PARTS = {
    "mixture": ("ngram", "lstm"),
    "nested mixture": ("mixture", "gru"),
    "mixture by context": ("lstm", "ngram"),
    "cache": ("lstm",),
    "unigram cache": ("ngram",),
    "cached mixture": ("mixture by context",),
}
KINDS = [name for name in families.NAMES if name != "tensor ngram"]
FLIPS_PER_FILE = 12
PICTURE = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A checkpoint of every kind, by name; composites embed those that came before."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in KINDS:
        (folder / name).mkdir()
        write(folder / name, name, [folder / part for part in PARTS.get(name, ())])
    return folder


def write(folder, name, parts=()):
    card = {"MODEL_CARD.md": b"# m\n", "curve.png": PICTURE}
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {"seed": 1}, [[5, 6, 7], [9]], card)
    write_checkpoint(folder, families.model(name), families.tokenizer(), description, parts=parts)


def files_of(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def flip(path, chance):
    """Flip one bit in place; what undoes it."""
    place, bit = chance.randrange(path.stat().st_size), 1 << chance.randrange(8)

    def turn():
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.seek(place)
            [byte] = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ bit]))

    turn()
    return turn


@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_bit_in_any_file_of_any_kind_is_refused_and_the_file_is_named(checkpoints, name, tmp_path):
    copy, chance = tmp_path / "copy", random.Random(name)
    shutil.copytree(checkpoints / name, copy)
    for path in files_of(copy):
        for _ in range(FLIPS_PER_FILE):
            undo = flip(path, chance)
            with pytest.raises(CheckpointError, match=path.name):
                load_checkpoint(copy)
            undo()
    load_checkpoint(copy)


@pytest.fixture
def promoted(checkpoints, tmp_path):
    """A registry with two versions of a mixture, and a host that serves the first, which is the champion."""
    registry = LocalRegistry(tmp_path / "registry", create=True)
    parts = [checkpoints / part for part in PARTS["mixture"]]
    for _ in range(2):
        registry.publish("m", lambda folder: write(folder, "mixture", parts))
    registry.set_alias("m", "champion", 1)
    clock = Clock()
    host = ModelHost(registry, addresses=["m"], clock=clock)
    host.load_all()
    return registry, host, clock


def score(host):
    loaded = host.resolve("m")
    return loaded.address, ask.score(loaded, {"texts": ["w3 w5 w9"]})["results"]


def test_the_version_before_answers_until_a_damaged_one_is_mended(promoted):
    registry, host, clock = promoted
    before, chance = score(host), random.Random(1)
    files = files_of(registry.resolve("m@2").path)
    damages = []
    for path in files:
        undo = flip(path, chance)
        registry.set_alias("m", "champion", 2)
        clock.now_s += 10_000  # whatever failed may be tried again
        host.refresh()
        assert score(host) == before
        damages.append(host.find("m").failure or host.models["m@2"].failure)
        undo()
    assert len(damages) == len(files) > 20
    assert all(path.name in told for path, told in zip(files, damages, strict=True))
    clock.now_s += 10_000
    host.refresh()
    assert score(host) == ("m@2", before[1])


def test_a_damaged_cache_of_a_remote_registry_mends_itself_wherever_the_damage_is(checkpoints, tmp_path):
    registry = open_registry(f"memory://{tmp_path.name}", cache=tmp_path)
    parts = [checkpoints / part for part in PARTS["mixture"]]
    version = registry.publish("m", lambda folder: write(folder, "mixture", parts))
    chance = random.Random(2)
    for path in files_of(registry.fetch(version)):
        flip(path, chance)
        load_checkpoint(registry.fetch(version))


def test_the_golden_test_refuses_what_the_hashes_would_let_through(checkpoints, tmp_path):
    """As where memory was bad while the checkpoint was written: its weights are others than those that were tested."""
    copy = tmp_path / "copy"
    shutil.copytree(checkpoints / "lstm", copy)
    manifest = read_manifest(copy)
    tensors = load_file(copy / "model.safetensors")
    for name in (name for name, tensor in tensors.items() if tensor.any()):  # of zeros, hardly others come
        damaged = {key: value.copy() for key, value in tensors.items()}
        damaged[name].view("u1").flat[3::4] ^= 2  # an exponent's bit in each number
        save_file(damaged, copy / "model.safetensors")
        write_manifest(copy, manifest.model_copy(update={"files": file_entries(copy)}))
        with pytest.raises(CheckpointError):
            load_checkpoint(copy, precision="float32")
