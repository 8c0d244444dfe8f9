"""Checkpoints with missing, cut or changed files, or one flipped bit.

They are refused by name while earlier versions are still served.
"""

import random
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.arrays import to_numpy
from models.checkpoint.load import CheckpointDescription, load_checkpoint, write_checkpoint
from models.checkpoint.manifest import file_entries, read_manifest, write_manifest
from models.checkpoint.registry import LocalRegistry, open_registry
from models.errors import CheckpointError, IntegrityError
from service.hosting.loading import Loader
from service.hosting.model_host import ModelHost
from service.local.ask import LocalCall, ask
from tests.support import families
from tests.support.object_stores import Clock

FAMILIES = ("ngram", "lstm", "gru", "mixture")
DESCRIPTION = CheckpointDescription(
    created="2026-01-01T00:00:00+00:00",
    metrics={"valid": {"perplexity": 10.0}},
    provenance={"seed": 1},
    golden=[[5, 6, 7], [9]],
    card={"MODEL_CARD.md": b"# model\n"},
)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Write a valid checkpoint of every family, by name; the mixture embeds the first two."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in FAMILIES:
        parts = [folder / "ngram", folder / "lstm"] if name == "mixture" else []
        (folder / name).mkdir()
        write_checkpoint(folder / name, families.model(name), families.tokenizer(), DESCRIPTION, parts=parts)
    return folder


def files_of(checkpoint):
    return sorted(p for p in checkpoint.rglob("*") if p.is_file())


@pytest.mark.parametrize("name", FAMILIES)
def test_an_undamaged_checkpoint_answers_as_the_model_it_was_made_from(checkpoints, name):
    original, loaded = families.model(name), load_checkpoint(checkpoints / name)
    state, again = original.initial_state(2), loaded.model.initial_state(2)
    for column in ([5, 6], [0, 2], [7, 39]):
        assert to_numpy(loaded.model.next_log_probs(again)) == pytest.approx(
            to_numpy(original.next_log_probs(state)), abs=1e-6
        )
        state = original.advance(state, np.array(column))
        again = loaded.model.advance(again, np.array(column))
    assert loaded.tokenizer.fingerprint == families.tokenizer().fingerprint
    assert loaded.manifest.parameters == original.num_parameters
    assert loaded.manifest.normalisation_deviation < 1e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_files_of_a_version_have_one_mode(checkpoints, name):
    """One user may train into a registry and another serve from it."""
    assert len({path.stat().st_mode for path in files_of(checkpoints / name)}) == 1


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("damage", ["cut", "emptied", "removed", "appended"])
def test_damage_to_any_file_is_seen_and_the_file_is_named(checkpoints, name, damage, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoints / name, copy)
    chance = random.Random(f"{name} {damage}")
    for path in files_of(copy):
        good = path.read_bytes()
        for _ in range(6 if damage == "cut" else 1):
            if damage == "cut":
                path.write_bytes(good[: chance.randrange(len(good))])
            elif damage == "removed":
                path.unlink()
            else:
                path.write_bytes(b"" if damage == "emptied" else good + b" ")
            with pytest.raises(CheckpointError, match=path.name):
                load_checkpoint(copy)
        path.write_bytes(good)
    load_checkpoint(copy)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_that_answers_otherwise_than_published_fails_its_golden_test(checkpoints, name, tmp_path):
    """As after a change of library or hardware; the hashes are right."""
    other = tmp_path / "other"
    other.mkdir()
    parts = [checkpoints / "ngram", checkpoints / "lstm"] if name == "mixture" else []
    write_checkpoint(other, families.model(name), families.tokenizer(), DESCRIPTION, parts=parts)
    from models.checkpoint.golden import replay_golden

    golden = other / "golden.json"
    golden.write_text(golden.read_text().replace('"logprobs": [[-', '"logprobs": [[-1'))
    with pytest.raises(IntegrityError, match="differ from the published ones"):
        replay_golden(other, families.model(name), device="cpu")


@pytest.mark.parametrize(
    ("family", "file", "text"),
    [
        ("ngram", "tokenizer.json", "[" * 100_000),
        ("ngram", "tokenizer.json", '{"kind": "word", "tokens": ["a", "a"]}'),
        ("ngram", "config.json", "[" * 100_000),
        (
            "ngram",
            "golden.json",
            '{"tolerance": {"cpu": {"float32": 1}}, "sequences": [[1e999]], "logprobs": [[0]]}',
        ),
        (
            "ngram",
            "golden.json",
            '{"tolerance": {"cpu": {"float32": 1}}, "sequences": [[999]], "logprobs": [[0]]}',
        ),
        ("ngram", "golden.json", '{"tolerance": {"cpu": {"float32": 1%s}}}' % ("0" * 400)),
        ("mixture", "config.json", '{"weights": [1%s, 1]}' % ("0" * 400)),
        ("lstm", "metrics.json", "[]"),
        ("lstm", "metrics.json", '{"int8": 3}'),
    ],
)
def test_a_hostile_file_with_the_right_hash_is_a_clear_error(checkpoints, family, file, text, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoints / family, copy)
    manifest = read_manifest(copy)
    (copy / file).write_text(text)
    write_manifest(copy, manifest.model_copy(update={"files": file_entries(copy)}))
    with pytest.raises(CheckpointError):
        load_checkpoint(copy)


PARTS = {
    "mixture": ("ngram", "lstm"),
    "nested mixture": ("mixture", "gru"),
    "mixture by context": ("lstm", "ngram"),
    "cache": ("lstm",),
    "unigram cache": ("ngram",),
    "cached mixture": ("mixture by context",),
    "adapted cache": ("mixture by context",),
}
KINDS = [name for name in families.NAMES if name != "tensor ngram"]
FLIPS_PER_FILE = 12
PICTURE = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory):
    """Write a checkpoint of every kind, by name; composites embed earlier ones."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in KINDS:
        (folder / name).mkdir()
        write(folder / name, name, [folder / part for part in PARTS.get(name, ())])
    return folder


def write(folder, name, parts=()):
    card = {"MODEL_CARD.md": b"# m\n", "curve.png": PICTURE}
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {"seed": 1}, [[5, 6, 7], [9]], card)
    write_checkpoint(folder, families.model(name), families.tokenizer(), description, parts=parts)


def flip(path, chance):
    """Flip one bit in place; return the function that undoes it."""
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
def test_a_flipped_bit_in_any_file_of_any_kind_is_refused_and_the_file_is_named(every_kind, name, tmp_path):
    copy, chance = tmp_path / "copy", random.Random(name)
    shutil.copytree(every_kind / name, copy)
    for path in files_of(copy):
        for _ in range(FLIPS_PER_FILE):
            undo = flip(path, chance)
            with pytest.raises(CheckpointError, match=path.name):
                load_checkpoint(copy)
            undo()
    load_checkpoint(copy)


@pytest.fixture
def promoted(every_kind, tmp_path):
    """Create a registry with two versions of a mixture, and a host that serves the first, the champion."""
    registry = LocalRegistry(tmp_path / "registry", create=True)
    parts = [every_kind / part for part in PARTS["mixture"]]
    for _ in range(2):
        registry.publish("m", lambda folder: write(folder, "mixture", parts))
    registry.set_alias("m", "champion", 1)
    clock = Clock()
    host = ModelHost(Loader(registry=registry, clock=clock), addresses=["m"])
    host.load_all()
    return registry, host, clock


def score(host):
    loaded = host.resolve("m")
    call = LocalCall("none", lambda *_, **__: loaded)
    return loaded.address, ask(call, "/v1/score", {"texts": ["w3 w5 w9"]})["results"]


def test_the_version_before_answers_until_a_damaged_one_is_mended(promoted):
    registry, host, clock = promoted
    before, chance = score(host), random.Random(1)
    files = files_of(registry.resolve("m@2").path)
    damages = []
    for path in files:
        undo = flip(path, chance)
        registry.set_alias("m", "champion", 2)
        clock.now_s += 10_000  # past the wait before another try
        host.refresh()
        assert score(host) == before
        damages.append(host.find("m").failure or host.models["m@2"].failure)
        undo()
    assert len(damages) == len(files) > 20
    assert all(path.name in told for path, told in zip(files, damages, strict=True))
    clock.now_s += 10_000
    host.refresh()
    assert score(host) == ("m@2", before[1])


def test_a_damaged_cache_of_a_remote_registry_mends_itself_wherever_the_damage_is(every_kind, tmp_path):
    registry = open_registry(f"memory://{tmp_path.name}", cache=tmp_path)
    parts = [every_kind / part for part in PARTS["mixture"]]
    version = registry.publish("m", lambda folder: write(folder, "mixture", parts))
    chance = random.Random(2)
    for path in files_of(registry.fetch(version)):
        flip(path, chance)
        load_checkpoint(registry.fetch(version))


def test_the_golden_test_refuses_what_the_hashes_would_let_through(every_kind, tmp_path):
    """As with bad memory during writing: the weights differ from the tested ones."""
    copy = tmp_path / "copy"
    shutil.copytree(every_kind / "lstm", copy)
    manifest = read_manifest(copy)
    tensors = load_file(copy / "model.safetensors")
    for name in (name for name, tensor in tensors.items() if tensor.any()):  # flips in zeros change little
        damaged = {key: value.copy() for key, value in tensors.items()}
        damaged[name].view("u1").flat[3::4] ^= 2  # an exponent bit of each number
        save_file(damaged, copy / "model.safetensors")
        write_manifest(copy, manifest.model_copy(update={"files": file_entries(copy)}))
        with pytest.raises(CheckpointError):
            load_checkpoint(copy, precision="float32")
