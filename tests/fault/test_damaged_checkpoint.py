"""A file of a checkpoint that is cut, gone, longer or strange is a clear error at load."""

import random
import shutil

import numpy as np
import pytest

from models.arrays import to_numpy
from models.checkpoint.load import load_checkpoint
from models.checkpoint.manifest import file_entries, read_manifest, write_manifest
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.errors import CheckpointError, IntegrityError
from tests import families

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
    """A whole checkpoint of every family, by name; the mixture embeds the first two."""
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
def test_whoever_may_read_one_file_may_read_all(checkpoints, name):
    """A registry that one user trains into and another serves from."""
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
    """As a change of library or hardware might; the hashes are right."""
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
