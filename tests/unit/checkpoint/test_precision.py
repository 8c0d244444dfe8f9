"""In which precision a loaded model computes, and that its answers are the published ones."""

import json

import numpy as np
import pytest

from models.arrays import to_numpy
from models.cache.config import CacheConfig
from models.cache.model import CacheModel
from models.checkpoint.golden import replay_golden
from models.checkpoint.load import load_checkpoint
from models.checkpoint.precision import MAX_INT8_COST, int8_problems, is_int8_recommended, to_int8
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.errors import IntegrityError, InvalidInputError
from models.neural.config import NetworkConfig
from models.neural.model import Int8Model, NeuralModel
from models.neural.network import Network
from tests import families

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
def test_what_has_no_network_stays_the_very_same(name):
    assert to_int8(families.model(name)) is families.model(name)
    assert int8_problems(families.model(name)) == []


@pytest.mark.parametrize("precision", ["auto", "int8"])
def test_a_network_that_integers_cannot_compute_stays_in_float32(tmp_path, caplog, precision):
    config = NetworkConfig(layers=2, embedding_size=8, hidden_size=8, attention="scaled", attention_size=4)
    vocabulary = families.tokenizer().vocabulary
    model = NeuralModel(Network(config, len(vocabulary)), vocabulary)
    problems = int8_problems(model)
    path = written(tmp_path / "m", model, {"int8": {"problems": problems}})
    assert load_checkpoint(path, precision=precision).precision == "float32"
    assert ("stays in float32: int8 knows no attention" in caplog.text) == (precision == "int8")


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
    with pytest.raises(InvalidInputError, match="precision is 'int4', it can be auto, float32, int8"):
        load_checkpoint(path, precision="int4")
