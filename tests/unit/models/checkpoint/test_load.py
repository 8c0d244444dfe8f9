"""Loading of checkpoints: devices, shared weights, precision and golden tests."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from models.arrays import to_numpy
from models.cache.config import CacheConfig
from models.cache.model import CacheModel
from models.checkpoint.golden import replay_golden
from models.checkpoint.load import CheckpointDescription, load_checkpoint, write_checkpoint
from models.checkpoint.precision import MAX_INT8_COST, int8_problems, is_int8_recommended, to_int8
from models.errors import InputError, IntegrityError
from models.language_model import pad_sequences, prefill_sequences, score_sequences
from models.mixture import MixtureModel
from models.neural import network as device_names
from models.neural.config import NetworkConfig
from models.neural.int8.model import Int8Model
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.ngram.cuda import model as cuda_model
from models.ngram.cuda.model import TensorNGramModel
from models.ngram.model import NGramModel
from tests.support import families
from tests.support.families import DEVICES

DESCRIPTION = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[5, 6, 7], [9]], {})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """An n-gram model, an LSTM, a mixture of both, and a mixture of n-gram models."""
    folder = tmp_path_factory.mktemp("checkpoints")
    ngram = families.model("ngram")
    models = {
        "ngram": (ngram, []),
        "lstm": (families.model("lstm"), []),
        "mixture": (families.model("mixture"), ["ngram", "lstm"]),
        "ngrams": (MixtureModel([ngram, ngram], [0.5, 0.5]), ["ngram", "ngram"]),
    }
    for name, (model, embedded) in models.items():
        (folder / name).mkdir()
        parts = [folder / part for part in embedded]
        write_checkpoint(folder / name, model, families.tokenizer(), DESCRIPTION, parts=parts)
    return folder


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture"])
@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cpu:1", ""])
def test_names_of_no_device_are_refused_for_every_family(checkpoints, name, device):
    with pytest.raises(InputError, match="it can be auto, cpu, cuda or cuda:<number>"):
        load_checkpoint(checkpoints / name, device=device)


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture"])
def test_a_cuda_device_that_is_not_there_is_refused_for_every_family(checkpoints, name):
    with pytest.raises(InputError, match=r"'cuda:99', but torch sees \d+ CUDA devices"):
        load_checkpoint(checkpoints / name, device="cuda:99")


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_an_ngram_model_is_on_the_cpu_unless_a_device_is_named(checkpoints, device):
    assert isinstance(load_checkpoint(checkpoints / "ngram", device=device).model, NGramModel)


def test_only_what_has_a_neural_part_asks_for_the_best_device(checkpoints, monkeypatch):
    asked = []
    monkeypatch.setattr(
        device_names, "resolve_device", lambda name: asked.append(name) or torch.device("cpu")
    )
    load_checkpoint(checkpoints / "ngrams", device="auto")
    assert asked == []
    load_checkpoint(checkpoints / "mixture", device="auto")
    assert asked == ["auto"]


def test_an_ngram_model_on_a_cuda_device_is_tensors_there(checkpoints, monkeypatch):
    """Without a CUDA device a CPU stand-in is used."""
    if DEVICES[-1] != "cuda":
        monkeypatch.setattr(device_names, "resolve_device", torch.device)
        monkeypatch.setattr(
            cuda_model, "_move_and_try", lambda model, _: TensorNGramModel(model, device="cpu")
        )
    model = load_checkpoint(checkpoints / "ngram", device="cuda").model
    assert isinstance(model, TensorNGramModel)
    assert model.device.type == DEVICES[-1]
    original = families.model("ngram")
    expected = original.next_log_probs(original.initial_state(2))
    np.testing.assert_allclose(to_numpy(model.next_log_probs(model.initial_state(2))), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["ngram", "ngrams"])
def test_an_ngram_model_that_does_not_fit_answers_from_the_cpu(checkpoints, monkeypatch, caplog, name):
    def fail(model, device):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(device_names, "resolve_device", torch.device)
    monkeypatch.setattr(cuda_model, "_move_and_try", fail)
    model = load_checkpoint(checkpoints / name, device="cuda").model
    assert all(isinstance(part, NGramModel) for part in getattr(model, "parts", [model]))
    assert "stays on the CPU because device cuda cannot run it: CUDA out of memory." in caplog.text


def load_without_torch(folder, names, device, precision):
    """Check that a process that loads, warms up and asks models imports no torch."""
    code = f"""
import sys
from pathlib import Path
from models.checkpoint.load import load_checkpoint
from models.language_model import pad_sequences, score_sequences
from service.hosting.loading import warm_up
for name in {names!r}:
    model = load_checkpoint(Path({str(folder)!r}) / name, device={device!r}, precision={precision!r}).model
    warm_up(model)
    score_sequences(model, model.initial_state(1), *pad_sequences([[3, 5, 4]]))
    if 'torch' in sys.modules:
        sys.exit(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_serving_ngram_models_on_the_cpu_needs_no_torch(checkpoints, device):
    load_without_torch(checkpoints, ["ngram", "ngrams"], device, "auto")


PARTS = {
    "mixture": ["ngram", "lstm"],
    "nested mixture": ["mixture", "gru"],
    "cache": ["lstm"],
    "unigram cache": ["ngram"],
}
NAMES = ["ngram", *families.NEURAL, *PARTS]
IN_INTEGERS = set(families.NAMES) - {"ngram", "tensor ngram", "unigram cache"}


@pytest.fixture(scope="module")
def family_checkpoints(tmp_path_factory):
    """A checkpoint of every family, with int8 golden scores where supported."""
    folder = tmp_path_factory.mktemp("checkpoints")
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[5, 6, 7], [9]], {})
    for name in NAMES:
        (folder / name).mkdir()
        parts = [folder / part for part in PARTS.get(name, [])]
        write_checkpoint(folder / name, families.model(name), families.tokenizer(), description, parts=parts)
    return folder


def answers(model):
    """Scores of rows of different lengths, and distributions after forty texts and after one."""
    tokens, lengths = pad_sequences(
        [[3 + (7 * row + place) % 37 for place in range(row % 9)] for row in range(40)]
    )
    after = prefill_sequences(model, model.initial_state(40), tokens, lengths)
    alone = model.advance(model.initial_state(1), np.array([5]))
    scores = score_sequences(model, model.initial_state(40), tokens, lengths)
    return [scores, *(to_numpy(model.next_log_probs(state)) for state in (after, alone))]


def laid(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != ".lock") if folder.exists() else []


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_the_same_bits_whoever_packed_the_weights(family_checkpoints, tmp_path, name, precision):
    alone, first, second = (
        load_checkpoint(family_checkpoints / name, precision=precision, shared=shared)
        for shared in (None, tmp_path, tmp_path)
    )
    for one, other, another in zip(*(answers(c.model) for c in (alone, first, second)), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, another)
    in_integers = precision == "int8" and name in IN_INTEGERS
    assert bool(laid(tmp_path)) == in_integers


def test_serving_networks_in_int8_needs_no_torch(family_checkpoints):
    load_without_torch(family_checkpoints, NAMES, "cpu", "int8")


def test_a_part_shares_with_the_same_model_alone(family_checkpoints, tmp_path):
    lstm = load_checkpoint(family_checkpoints / "lstm", precision="int8", shared=tmp_path)
    files = laid(tmp_path)
    mixture = load_checkpoint(family_checkpoints / "nested mixture", precision="int8", shared=tmp_path)
    assert set(files) < set(laid(tmp_path))
    inodes = {path: path.stat().st_ino for path in files}
    load_checkpoint(family_checkpoints / "cache", precision="int8", shared=tmp_path)
    assert {path: path.stat().st_ino for path in files} == inodes
    assert lstm.precision == mixture.precision == "int8"


def test_a_packed_file_that_was_damaged_is_made_anew(family_checkpoints, tmp_path, caplog):
    before = answers(load_checkpoint(family_checkpoints / "lstm", precision="int8", shared=tmp_path).model)
    for path in laid(tmp_path):
        content = bytearray(path.read_bytes())
        content[-100] ^= 0x55
        path.write_bytes(content)
    after = answers(load_checkpoint(family_checkpoints / "lstm", precision="int8", shared=tmp_path).model)
    assert "is damaged and rebuilt" in caplog.text
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_the_golden_test_is_replayed_on_what_was_laid(family_checkpoints, tmp_path, monkeypatch):
    """Sealed weights that another process packed wrongly fail the golden test."""
    with monkeypatch.context() as patch:
        patch.setattr("models.checkpoint.load.replay_golden", lambda *_, **__: 0)
        patch.setattr("models.neural.int8.matrix.ZERO_POINT", 120)
        load_checkpoint(family_checkpoints / "lstm", precision="int8", shared=tmp_path)
    with pytest.raises(IntegrityError, match="differ from the published ones"):
        load_checkpoint(family_checkpoints / "lstm", precision="int8", shared=tmp_path)


def test_on_a_cuda_device_nothing_is_shared(family_checkpoints, tmp_path, monkeypatch):
    told = []

    def load(*_, device):
        told.append(device)
        return families.model("lstm")

    monkeypatch.setattr(device_names, "resolve_device", torch.device)
    monkeypatch.setattr(NeuralModel, "load", load)
    load_checkpoint(family_checkpoints / "lstm", device="cuda", shared=tmp_path)
    assert told == ["cuda"]
    assert not any(tmp_path.iterdir())


def test_parts_have_the_vocabulary_of_the_whole(family_checkpoints):
    loaded = load_checkpoint(family_checkpoints / "nested mixture")
    assert all(part.vocabulary is loaded.tokenizer.vocabulary for part in loaded.model.parts)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_shared_files_count_as_much_as_own_memory(family_checkpoints, tmp_path, precision):
    own = load_checkpoint(family_checkpoints / "lstm", precision=precision).model.memory()
    shared = load_checkpoint(family_checkpoints / "lstm", precision=precision, shared=tmp_path).model.memory()
    packed = sum(path.stat().st_size for path in laid(tmp_path))
    assert shared.mapped == own.mapped + packed
    # tolerance for headers and mapping objects; a CPU without AVX-512 packs no float32 matrix
    assert abs(shared.host - own.host) < 1000 * (2 + len(laid(tmp_path)))


def test_weights_in_single_precision_are_the_file_itself(family_checkpoints):
    size = load_checkpoint(family_checkpoints / "lstm", precision="float32").model.memory()
    assert size.mapped >= 4 * families.model("lstm").num_parameters


CHEAP, DEAR = {"int8": {"cost": 0.004}}, {"int8": {"cost": 0.006}}


def written(directory, model, metrics=None, parts=()):
    directory.mkdir()
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", metrics or {}, {}, [[5, 6, 7], [9]], {})
    write_checkpoint(directory, model, families.tokenizer(), description, parts=parts)
    return directory


@pytest.mark.parametrize(
    ("metrics", "precision", "used"),
    [
        (CHEAP, "auto", "int8"),
        (DEAR, "auto", "float32"),
        ({}, "auto", "float32"),
        (DEAR, "int8", "int8"),
        (CHEAP, "float32", "float32"),
    ],
)
def test_auto_takes_int8_where_it_was_found_to_cost_little(tmp_path, metrics, precision, used):
    checkpoint = load_checkpoint(
        written(tmp_path / "m", families.model("lstm"), metrics), precision=precision
    )
    assert checkpoint.precision == used
    assert isinstance(checkpoint.model, Int8Model if used == "int8" else NeuralModel)


@pytest.mark.parametrize("cost", [None, "0.001", MAX_INT8_COST * 1.01, float("nan")])
def test_costs_that_are_not_small_numbers_advise_against_int8(cost):
    assert not is_int8_recommended({"int8": {"cost": cost}})
    assert not is_int8_recommended({"int8": cost})


def test_a_mixture_in_int8_answers_as_the_mixture_of_its_rounded_parts(tmp_path):
    parts = [written(tmp_path / name, families.model(name)) for name in ("ngram", "lstm")]
    path = written(tmp_path / "mixture", families.model("mixture"), CHEAP, parts)
    loaded, single = load_checkpoint(path), families.model("mixture")
    assert loaded.precision == "int8"
    assert isinstance(loaded.model.parts[1], Int8Model)
    got = to_numpy(loaded.model.next_log_probs(loaded.model.initial_state(1)))
    assert (got == to_numpy(to_int8(single).next_log_probs(to_int8(single).initial_state(1)))).all()
    assert np.exp(got) == pytest.approx(np.exp(single.next_log_probs(single.initial_state(1))), abs=5e-3)


def test_a_cache_is_rounded_within():
    cached = CacheModel(
        families.model("lstm"),
        CacheConfig(kind="continuous", window=9, flatness=9.0, half_life=None, weight=0.2),
    )
    rounded = to_int8(cached)
    assert isinstance(rounded.inner, Int8Model)
    assert rounded.config == cached.config


@pytest.mark.parametrize("name", ["ngram", "tensor ngram"])
def test_int8_leaves_models_without_a_network_unchanged(name):
    assert to_int8(families.model(name)) is families.model(name)
    assert int8_problems(families.model(name)) == []


def widest():
    config = NetworkConfig(cell="feed-forward", window=64, embedding_size=2049, hidden_size=8)
    vocabulary = families.tokenizer().vocabulary
    return NeuralModel(Network(config, len(vocabulary)), vocabulary)


def test_networks_of_a_mixture_that_integers_can_compute_do_so(tmp_path):
    models = {"lstm": families.model("lstm"), "widest": widest()}
    parts = [written(tmp_path / name, model) for name, model in models.items()]
    path = written(tmp_path / "m", MixtureModel([*models.values()], [0.5, 0.5]), parts=parts)
    loaded = load_checkpoint(path, precision="int8").model
    assert [type(part) for part in loaded.parts] == [Int8Model, NeuralModel]


@pytest.mark.parametrize("precision", ["auto", "int8"])
def test_a_network_that_integers_cannot_compute_stays_in_float32(tmp_path, caplog, precision):
    model = widest()
    problems = int8_problems(model)
    path = written(tmp_path / "m", model, {"int8": {"problems": problems}})
    assert load_checkpoint(path, precision=precision).precision == "float32"
    assert ("stays in float32: int8 supports layer inputs of up to 131072" in caplog.text) == (
        precision == "int8"
    )


def test_answers_in_int8_other_than_the_published_ones_fail_the_golden_test(tmp_path):
    path = written(tmp_path / "m", families.model("lstm"))
    file = path / "golden.json"
    golden = json.loads(file.read_text())
    golden["logprobs_int8"][0][0] += 0.001
    file.write_text(json.dumps(golden))
    assert replay_golden(path, families.model("lstm"), device="cpu") < 1e-5
    with pytest.raises(IntegrityError, match="on cpu in int8 the model's log-probs differ"):
        replay_golden(path, to_int8(families.model("lstm")), device="cpu", precision="int8")


def test_int8_is_published_bit_by_bit(tmp_path):
    path = written(tmp_path / "m", families.model("gru"))
    assert replay_golden(path, to_int8(families.model("gru")), device="cpu", precision="int8") == 0


def test_a_precision_of_another_name_is_refused(tmp_path):
    path = written(tmp_path / "m", families.model("lstm"))
    with pytest.raises(InputError, match="precision is 'int4'; it must be one of auto, float32, int8"):
        load_checkpoint(path, precision="int4")
