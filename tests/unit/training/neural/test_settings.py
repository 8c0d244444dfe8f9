"""Invalid settings, and precision settings."""

import math

import pytest
import torch
from pydantic import ValidationError

from models.errors import InputError
from models.neural.config import NetworkConfig
from training.neural.run import training_precision
from training.neural.settings import TrainSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_minutes", 0),
        ("max_minutes", float("nan")),
        ("epochs", 0),
        ("batch_size", 0),
        ("bptt_length", -3),
        ("learning_rate", 0),
        ("learning_rate", float("inf")),
        ("warmup", 1),
        ("reset", 1.5),
        ("optimizer", "adagrad"),
        ("patience", 0),
        ("learning_rte", 1),
        ("schedule", "linear"),
        ("betas", (0.9, 1.0)),
        ("momentum", 1),
        ("dropout_passes", -1),
        ("dropout_passes", math.inf),
        ("decay_at", (0.5, 0.4)),
        ("decay_at", (0.0, 0.4)),
        ("average", "swa"),
        ("average_decay", 1),
        ("average_start", 1),
        ("nonmonotone", 0),
        ("activation_penalty", -1),
        ("validate_context", "document"),
        ("save_minutes", -1),
    ],
)
def test_a_wrong_setting_is_refused_by_name(field, value):
    with pytest.raises(ValidationError) as caught:
        TrainSettings(**{field: value})
    assert caught.value.errors()[0]["loc"] == (field,)


def test_a_cycle_needs_room():
    with pytest.raises(ValidationError, match="warmup and anneal together must be below 1, given 0"):
        TrainSettings(schedule="one-cycle", warmup=0.7, anneal=0.3)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"momentum": 0.9}, "momentum requires train.optimizer=sgd or rmsprop, given adamw"),
        ({"betas": (0.9, 0.99), "optimizer": "sgd"}, "betas requires train.optimizer=adamw or adam"),
        ({"anneal": 0.2}, "anneal requires train.schedule=one-cycle, given cosine"),
        ({"average_decay": 0.9}, "average_decay requires train.average=ema, given none"),
        ({"nonmonotone": 3, "average": "ema"}, "nonmonotone requires train.average=nt-asgd"),
        ({"dropout_passes": 3}, "dropout_passes requires train.dropout_start below 1, given 1"),
        ({"sampled_share": 0.5, "loss": "auto"}, "sampled_share requires train.loss=sampled or nce"),
    ],
)
def test_a_key_that_would_do_nothing_is_told(settings, problem):
    assert TrainSettings(**settings).unused_key().startswith(problem)
    assert TrainSettings().unused_key() is None


@pytest.mark.parametrize(
    ("field", "value"), [("cell", "rnn"), ("layers", 0), ("hidden_size", -5), ("dropout", 1)]
)
def test_a_wrong_shape_is_refused_by_name(field, value):
    with pytest.raises(ValidationError) as caught:
        NetworkConfig(**{field: value})
    assert caught.value.errors()[0]["loc"] == (field,)


@pytest.mark.parametrize(
    ("instructions", "expected"), [({"amx_bf16": True}, torch.bfloat16), ({}, torch.float32)]
)
def test_auto_precision_follows_the_instructions_of_the_cpu(monkeypatch, instructions, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions)
    assert training_precision(TrainSettings(), torch.device("cpu")) == expected


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_named_precision_is_taken(monkeypatch, name):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    settings = TrainSettings(precision=name)
    assert training_precision(settings, torch.device("cpu")) == getattr(torch, name)


def test_bfloat16_is_refused_by_name_on_a_cpu_that_cannot_compute_in_it(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    with pytest.raises(InputError, match="AVX-512") as caught:
        training_precision(TrainSettings(precision="bfloat16"), torch.device("cpu"))
    assert caught.value.param == "train.precision"
