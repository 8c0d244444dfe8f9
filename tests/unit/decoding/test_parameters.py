"""What a request may ask of its continuation."""

import pytest

from models.decoding.parameters import DecodingParameters
from models.errors import InvalidInputError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("strategy", "dream"),
        ("temperature", -0.5),
        ("temperature", 999_999.0),
        ("temperature", float("nan")),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_a_value_outside_its_limits_is_refused_by_name_and_value(field, value):
    with pytest.raises(InvalidInputError, match=f"{field} is {value}") as caught:
        DecodingParameters(**{"max_tokens": 1, field: value})
    assert caught.value.parameter == field


@pytest.mark.parametrize("stop", [("",), ("x" * 257,), ("x",) * 17])
def test_stop_strings_are_neither_empty_nor_long_nor_many(stop):
    with pytest.raises(InvalidInputError, match="stop"):
        DecodingParameters(max_tokens=1, stop=stop)


def test_temperature_zero_means_greedy():
    assert DecodingParameters(max_tokens=1, temperature=0).greedy
    assert not DecodingParameters(max_tokens=1).greedy
