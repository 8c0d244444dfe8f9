"""Decimals to the nearest float and back: all floats, and decimals between two floats."""

from fractions import Fraction

import numba
import numpy as np
import pytest

from models.ngram.arpa_kernels import nearest_float, read_number, write_number


@numba.njit
def written(values, out):
    place = 0
    for value in values:
        place = write_number(value, out, place)
        out[place] = 10
        place += 1
    return place


def text_of(values):
    out = np.zeros(40 * len(values), np.uint8)
    return bytes(out[: written(values, out)]).decode().splitlines()


def read(field):
    easy, value = read_number(np.frombuffer(field + b"\n", np.uint8), 0, len(field))
    return np.float32(value) if easy else nearest_float(field)


def nearest(text):
    """Nearest float by exact fractions."""
    exact, about = Fraction(text), np.float32(float(Fraction(text)))
    around = [about, np.nextafter(about, np.float32(9)), np.nextafter(about, np.float32(-9))]
    return min(around, key=lambda f: (abs(exact - Fraction(float(f))), int(f.view(np.int32)) & 1))


def bits(values):
    return np.asarray(values, np.float32).view(np.int32).tolist()


def test_any_float_comes_back_from_its_text():
    values = np.random.default_rng(1).integers(0, 2**32, size=20_000, dtype=np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    texts = text_of(values)
    assert bits([read(text.encode()) for text in texts]) == bits(values)
    assert max(map(len, texts)) < 20


def test_the_text_of_a_float_is_as_short_as_can_be():
    """Six to nine digits; fewer would be read as another float."""
    values = np.random.default_rng(2).uniform(-9, 0, size=2000).astype(np.float32)
    for value, text in zip(values, text_of(values), strict=True):
        digits = len(text.lstrip("-0.").replace(".", ""))
        assert digits <= 6 or np.float32(f"{value:.{digits - 1}g}") != value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (-99.0, "-99"),
        (-0.30103, "-0.30103"),
        (-1.5, "-1.5"),
        (100000.0, "100000"),
        (-1e-6, "-0.000001"),
        (-1e-9, "-1e-9"),
        (1.25e-30, "1.25e-30"),
        (3.4028235e38, "3.4028235e38"),
        (1e-45, "1.4013e-45"),
        (-np.inf, "-inf"),
    ],
)
def test_numbers_look_as_people_write_them(value, text):
    assert text_of(np.array([value], np.float32)) == [text]


def test_a_decimal_between_two_floats_becomes_the_nearer_one():
    """Also if double precision cannot distinguish it from the midpoint."""
    rng = np.random.default_rng(3)
    for below in rng.uniform(0.001, 8, size=500).astype(np.float32):
        above = np.nextafter(below, np.float32(9))
        middle = (Fraction(float(below)) + Fraction(float(above))) / 2
        for digits in (7, 8, 9, 12, 17, 18, 20, 25, 40):
            whole = round(middle * 10**digits)
            for step in (-1, 0, 1):
                text = f"{(whole + step) // 10**digits}.{(whole + step) % 10**digits:0{digits}}"
                assert bits(read(text.encode())) == bits(nearest(text)), text


@pytest.mark.parametrize("field", ["1", "+1", "1.", "01.0", "1e0", "1E+0", "10e-1", "0.1e1", ".1e01"])
def test_one_number_can_be_written_in_many_ways(field):
    assert read(field.encode()) == 1


@pytest.mark.parametrize(
    "field", ["", "-", ".", "e1", "1e", "1e+", "--1", "1-", "1.2.3", "0x1", "1_0", "1,5", "infi", "1" * 401]
)
def test_malformed_number_is_none(field):
    easy, _ = read_number(np.frombuffer(field.encode() + b"\n", np.uint8), 0, len(field))
    assert not easy
    assert nearest_float(field.encode()) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("-inf", -np.inf),
        ("+Infinity", np.inf),
        ("1e39", np.inf),
        ("-1e999999999", -np.inf),
        ("1e-46", 0.0),
        ("-1e-999999999", -0.0),
        ("340282356779733661637539395458142568447", 3.4028235e38),
        ("340282356779733661637539395458142568448", np.inf),
        ("7.006492321624085e-46", 0.0),
        ("7.006492321624086e-46", 1e-45),
        ("0." + "0" * 50 + "1e51", 1.0),
    ],
)
def test_the_ends_of_the_range(field, value):
    assert bits(read(field.encode())) == bits(value)


def test_nan_is_a_number_to_be_refused_by_name():
    assert np.isnan(nearest_float(b"-NaN"))
