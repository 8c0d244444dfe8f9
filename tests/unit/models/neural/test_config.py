"""Network configurations: values out of range, and settings without effect."""

import re

import pytest
from pydantic import ValidationError

from models.neural.config import NetworkConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cell", "qrnn"),
        ("window", 0),
        ("window", 65),
        ("activation", "gelu"),
        ("attention", "dot"),
        ("attention_window", 1),
        ("attention_window", 513),
        ("attention_size", 0),
        ("residual", "often"),
        ("forget_bias", float("nan")),
        ("forget_bias", 1e300),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ValidationError) as caught:
        NetworkConfig(**{field: value})
    assert caught.value.errors()[0]["loc"] == (field,)


@pytest.mark.parametrize(
    ("options", "idle"),
    [
        ({"cell": "lstm", "window": 5}, "window requires neural.cell=feed-forward, given lstm"),
        (
            {"cell": "gru", "activation": "relu"},
            "activation requires neural.cell=feed-forward or elman",
        ),
        ({"cell": "gru", "forget_bias": 1.0}, "forget_bias requires neural.cell=lstm, given gru"),
        ({"cell": "mingru", "weight_drop": 0.0}, "weight_drop requires .* given mingru"),
        ({"cell": "feed-forward", "weight_drop": 0.5}, "weight_drop requires .* given feed-forward"),
        (
            {"cell": "mingru", "orthogonal": True},
            "orthogonal requires neural.cell=elman or lstm or gru",
        ),
        ({"cell": "feed-forward", "learned_state": True}, "learned_state requires"),
        ({"attention_window": 8}, "attention_window requires neural.attention=additive or .* given none"),
        (
            {"attention": "multiplicative", "attention_size": 8},
            "attention_size requires .* given multiplicative",
        ),
        ({"residual": True, "embedding_size": 8}, "residual requires layers .*hidden_size=512 .* reads 8"),
        ({"cell": "feed-forward", "residual": True, "hidden_size": 256}, "one layer that reads 1280"),
    ],
)
def test_a_key_that_would_do_nothing_is_named(options, idle):
    assert re.search(idle, NetworkConfig(**options).unused_key() or "")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cell": "feed-forward", "window": 3, "activation": "relu", "layers": 2, "residual": True},
        {
            "cell": "elman",
            "activation": "relu",
            "orthogonal": True,
            "learned_state": True,
            "weight_drop": 0.1,
        },
        {
            "cell": "lstm",
            "forget_bias": 2.0,
            "attention": "additive",
            "attention_window": 4,
            "attention_size": 8,
        },
        {"cell": "mingru", "residual": True, "embedding_size": 512},
    ],
)
def test_keys_that_act_are_not_named(options):
    assert NetworkConfig(**options).unused_key() is None


def test_defaults_are_never_idle():
    """Only explicit settings are checked, because a checkpoint contains every key."""
    config = NetworkConfig(cell="mingru")
    assert config.unused_key() is None
    assert NetworkConfig.model_validate_json(config.model_dump_json()) == config
