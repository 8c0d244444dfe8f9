"""Loading with packed weights in files that processes share: the same answers, to the last bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from models.arrays import to_numpy
from models.checkpoint.load import load_checkpoint
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.errors import IntegrityError
from models.language_model import pad_sequences
from models.neural import network as device_names
from models.neural.model import NeuralModel
from models.neural.packed.matrix import BEST_PACKING
from service.engine.memory import measure_bytes
from tests import families

PARTS = {
    "mixture": ["ngram", "lstm"],
    "nested mixture": ["mixture", "gru"],
    "cache": ["lstm"],
    "unigram cache": ["ngram"],
}
NAMES = ["ngram", *families.NEURAL, *PARTS]
IN_INTEGERS = {"lstm", "gru", "elman", "mingru", "feed-forward", "mixture", "nested mixture", "cache"}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A checkpoint of every family, with scores in int8 where there can be any."""
    folder = tmp_path_factory.mktemp("checkpoints")
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[5, 6, 7], [9]], {})
    for name in NAMES:
        (folder / name).mkdir()
        parts = [folder / part for part in PARTS.get(name, [])]
        write_checkpoint(folder / name, families.model(name), families.tokenizer(), description, parts=parts)
    return folder


def answers(model):
    """Scores of rows of different lengths, and distributions after one and after forty texts."""
    tokens, lengths = pad_sequences(
        [[3 + (7 * row + place) % 37 for place in range(row % 9)] for row in range(40)]
    )
    after = model.prefill(model.initial_state(40), tokens, lengths)
    alone = model.advance(model.initial_state(1), np.array([5]))
    scores = model.score(model.initial_state(40), tokens, lengths)
    return [scores, *(to_numpy(model.next_log_probs(state)) for state in (after, alone))]


def laid(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != ".lock") if folder.exists() else []


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_the_same_bits_whoever_packed_the_weights(checkpoints, tmp_path, name, precision):
    alone, first, second = (
        load_checkpoint(checkpoints / name, precision=precision, shared=shared)
        for shared in (None, tmp_path, tmp_path)
    )
    for one, other, another in zip(*(answers(c.model) for c in (alone, first, second)), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, another)
    in_integers = precision == "int8" and name in IN_INTEGERS
    has_network = name not in {"ngram", "unigram cache"}
    assert bool(laid(tmp_path)) == (in_integers or (has_network and BEST_PACKING is not None))


def test_a_part_shares_with_the_same_model_alone(checkpoints, tmp_path):
    lstm = load_checkpoint(checkpoints / "lstm", precision="int8", shared=tmp_path)
    files = laid(tmp_path)
    mixture = load_checkpoint(checkpoints / "nested mixture", precision="int8", shared=tmp_path)
    assert set(files) < set(laid(tmp_path))
    inodes = {path: path.stat().st_ino for path in files}
    load_checkpoint(checkpoints / "cache", precision="int8", shared=tmp_path)
    assert {path: path.stat().st_ino for path in files} == inodes
    assert lstm.precision == mixture.precision == "int8"


def test_a_packed_file_that_was_damaged_is_made_anew(checkpoints, tmp_path, caplog):
    before = answers(load_checkpoint(checkpoints / "lstm", precision="int8", shared=tmp_path).model)
    for path in laid(tmp_path):
        content = bytearray(path.read_bytes())
        content[-100] ^= 0x55
        path.write_bytes(content)
    after = answers(load_checkpoint(checkpoints / "lstm", precision="int8", shared=tmp_path).model)
    assert "is damaged and laid anew" in caplog.text
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_the_golden_test_is_replayed_on_what_was_laid(checkpoints, tmp_path, monkeypatch):
    """Weights that another process packed wrongly, but sealed, are found by the answers."""
    with monkeypatch.context() as patch:
        patch.setattr("models.checkpoint.load.replay_golden", lambda *_, **__: 0)
        patch.setattr("models.neural.int8.matrix.ZERO", 120)
        load_checkpoint(checkpoints / "lstm", precision="int8", shared=tmp_path)
    with pytest.raises(IntegrityError, match="differ from the published ones"):
        load_checkpoint(checkpoints / "lstm", precision="int8", shared=tmp_path)


def test_on_a_cuda_device_nothing_is_shared(checkpoints, tmp_path, monkeypatch):
    told = []

    def load(*_, device, weight_cache):
        told.append((device, weight_cache))
        return families.model("lstm")

    monkeypatch.setattr(device_names, "resolve_device", torch.device)
    monkeypatch.setattr(NeuralModel, "load", load)
    load_checkpoint(checkpoints / "lstm", device="cuda", shared=tmp_path)
    assert told == [("cuda", None)]


def test_parts_have_the_vocabulary_of_the_whole(checkpoints):
    loaded = load_checkpoint(checkpoints / "nested mixture")
    assert all(part.vocabulary is loaded.tokenizer.vocabulary for part in loaded.model.parts)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_shared_files_count_as_much_as_own_memory(checkpoints, tmp_path, precision):
    own = measure_bytes(load_checkpoint(checkpoints / "lstm", precision=precision).model)
    shared = measure_bytes(load_checkpoint(checkpoints / "lstm", precision=precision, shared=tmp_path).model)
    packed = sum(path.stat().st_size for path in laid(tmp_path))
    assert shared.mapped == own.mapped + packed
    assert abs(shared.host - own.host) < 1000 * len(laid(tmp_path))  # headers, and objects around the maps


def test_weights_in_single_precision_are_the_file_itself(checkpoints):
    size = measure_bytes(load_checkpoint(checkpoints / "lstm", precision="float32").model)
    assert size.mapped >= 4 * families.model("lstm").num_parameters
