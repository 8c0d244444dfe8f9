"""What a request may ask of its continuation."""

import pytest

from models.decoding.parameters import DecodingParameters
from models.errors import InvalidInputError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("strategy", "dream"),
        ("temperature", -0.5),
        ("temperature", 999_999.0),
        ("temperature", NAN),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", NAN),
        ("typical_p", 0.0),
        ("typical_p", 1.01),
        ("min_p", -0.1),
        ("min_p", NAN),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", INF),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("frequency_penalty", NAN),
        ("min_tokens", 3),
        ("n", 0),
        ("n", 65),
        ("best_of", 65),
        ("length_penalty", INF),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_a_value_outside_its_limits_is_refused_by_name_and_value(field, value):
    with pytest.raises(InvalidInputError, match=f"{field} is {value}") as caught:
        DecodingParameters(**{"max_tokens": 2, field: value})
    assert caught.value.parameter == field


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 65}, "num_beams is 65; it must be from n, which is 1, to 64"),
        ({"num_beams": 2, "n": 3}, "num_beams is 2; it must be from n, which is 3"),
        (
            {"num_beams": 6, "num_beam_groups": 4},
            "num_beam_groups is 4; it must divide num_beams, which is 6",
        ),
        ({"num_beam_groups": 0}, "num_beam_groups is 0"),
        ({"diversity_penalty": -1.0}, "diversity_penalty is -1.0; it must be from 0 to 100"),
        ({"n": 2, "best_of": 3}, "best_of is 3, but strategy 'beam' draws nothing"),
    ],
)
def test_beams_have_limits_of_their_own(options, message):
    with pytest.raises(InvalidInputError, match=message):
        DecodingParameters(max_tokens=1, strategy="beam", **options)


@pytest.mark.parametrize("field", ["num_beams", "num_beam_groups", "diversity_penalty"])
def test_what_only_beams_have_is_refused_without_them(field):
    with pytest.raises(InvalidInputError, match=f"{field} is 3; it needs strategy 'beam'"):
        DecodingParameters(max_tokens=1, **{field: 3})


def test_the_best_are_chosen_of_at_least_as_many():
    with pytest.raises(InvalidInputError, match="best_of is 2; it must be from n, which is 3, to 64"):
        DecodingParameters(max_tokens=1, n=3, best_of=2)


@pytest.mark.parametrize("stop", [("",), ("x" * 257,), ("x",) * 17])
def test_stop_strings_are_neither_empty_nor_long_nor_many(stop):
    with pytest.raises(InvalidInputError, match="stop"):
        DecodingParameters(max_tokens=1, stop=stop)


@pytest.mark.parametrize("words", [("",), ("x" * 257,), ("x",) * 1025, ("x" * 200,) * 200])
def test_bad_words_are_neither_empty_nor_long_nor_many(words):
    with pytest.raises(InvalidInputError, match="bad_words"):
        DecodingParameters(max_tokens=1, bad_words=words)


def test_biases_are_few_bounded_and_of_different_tokens():
    for biases, message in (
        (tuple((i, 0.0) for i in range(1025)), "logit_bias is 1025 entries long"),
        (((7, 101.0),), "logit_bias.7 is 101.0; it must be from -100 to 100"),
        (((7, NAN),), "logit_bias.7 is nan"),
        (((7, 1.0), (7, 2.0)), "twice"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            DecodingParameters(max_tokens=1, logit_bias=biases)


def test_temperature_zero_means_greedy():
    assert DecodingParameters(max_tokens=1, temperature=0).greedy
    assert not DecodingParameters(max_tokens=1).greedy


@pytest.mark.parametrize(("options", "beams"), [({}, 4), ({"n": 7}, 7), ({"num_beams": 2}, 2)])
def test_there_are_four_beams_or_as_many_as_choices(options, beams):
    assert DecodingParameters(max_tokens=1, strategy="beam", **options).beams == beams
