"""Decimals of ARPA files to single precision and back, exactly.

Both ways work in double precision with a margin: a decimal is converted with an error of a
few units in the last place of a double, and counts as converted if all of that range rounds
to the same float. Where it does not, once in some ten million decimals, exact arithmetic in
Python decides.
"""

import math
import re
from fractions import Fraction
from typing import Any, TypeAlias

import numba
import numpy as np

from models.word_kernels import ByteArray

Int: TypeAlias = Any  # in kernels a whole number is an int64, whether Python or NumPy made it

MAX_NUMBER_BYTES = 32
"""The longest decimal that `write_number` writes, with room to spare."""

_POWERS = np.array([float(f"1e{exponent}") for exponent in range(64)])
_MARGIN = 2.0**-49
_MOST_DIGITS = 19  # of a decimal that fits 64 bits
_MAX_NUMBER_LENGTH = 400  # characters of a number: more is no number anybody wrote on purpose
_DECIMAL = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_NAMED_NUMBERS = {b"inf": math.inf, b"infinity": math.inf, b"nan": math.nan}
_MOST_ZEROS = 6  # a number so far from 1 is written with an exponent
_INF = (np.uint8(ord("i")), np.uint8(ord("n")), np.uint8(ord("f")))
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _E, _SMALL_E = (np.uint8(c) for c in b"-+.09Ee")


@numba.njit(nogil=True, cache=True)
def read_number(text: ByteArray, start: int, end: int) -> tuple[bool, np.float32]:
    """The float nearest to a decimal, and whether it was easy; else ask `nearest_float`."""
    negative = text[start] == _MINUS
    place = start + 1 if negative or text[start] == _PLUS else start
    mantissa, exponent, place = _read_digits(text, place, end)
    good = place > 0
    if good and place < end:
        written, good = _read_exponent(text, place, end)
        exponent += written
    value: Any = np.float64(mantissa)
    if mantissa > 0:
        good = good and -len(_POWERS) < exponent < len(_POWERS)
        if good:
            value = value * _POWERS[exponent] if exponent >= 0 else value / _POWERS[-exponent]
    if negative:
        value = -value
    nearest = np.float32(value * (1 - _MARGIN))
    return good and nearest == np.float32(value * (1 + _MARGIN)), nearest


@numba.njit(nogil=True, cache=True)
def _read_digits(text: ByteArray, place: int, end: int) -> tuple[np.uint64, Int, int]:
    """Digits with perhaps a point among them: as a whole number, and a power of ten for it.

    Those past the nineteenth are dropped: they weigh less than the margin.

    Returns:
        The number, the exponent, and the place after the digits; −1 if there is none.
    """
    mantissa, kept = np.uint64(0), 0
    exponent: Int = 0
    seen, fraction = False, False
    while place < end:
        byte = text[place]
        if _ZERO <= byte <= _NINE:
            seen = True
            if kept < _MOST_DIGITS:
                mantissa = mantissa * np.uint64(10) + np.uint64(byte - _ZERO)
                kept += 1 if mantissa > 0 else 0
                exponent -= fraction
            else:
                exponent += not fraction
        elif byte == _POINT and not fraction:
            fraction = True
        else:
            break
        place += 1
    return mantissa, exponent, place if seen else -1


@numba.njit(nogil=True, cache=True)
def _read_exponent(text: ByteArray, start: int, end: int) -> tuple[Int, bool]:
    """An "e" and a whole number of up to three digits: the number, and whether that is so."""
    place = start + 1
    if text[start] != _E and text[start] != _SMALL_E:
        return 0, False
    negative = place < end and text[place] == _MINUS
    if place < end and (negative or text[place] == _PLUS):
        place += 1
    if not place < end <= place + 3:
        return 0, False
    value: Int = 0
    while place < end:
        if not _ZERO <= text[place] <= _NINE:
            return 0, False
        value = value * 10 + np.int64(text[place] - _ZERO)
        place += 1
    return -value if negative else value, True


def nearest_float(field: bytes) -> np.float32 | None:
    """The float nearest to any decimal, infinity or NaN; None if it is no number."""
    if len(field) > _MAX_NUMBER_LENGTH:
        return None
    if not _DECIMAL.fullmatch(field):
        sign, name = (field[:1], field[1:]) if field[:1] in {b"+", b"-"} else (b"", field)
        value = _NAMED_NUMBERS.get(name.lower())
        return None if value is None else np.float32(-value if sign == b"-" else value)
    near = float(field)
    if near == 0 or not 1e-46 < abs(near) < 3.5e38:
        return np.float32(math.copysign(0.0 if abs(near) < 1 else math.inf, near))
    return _nearest_to(Fraction(field.decode()), near)


def _nearest_to(exact: Fraction, near: float) -> np.float32:
    """The float nearest to a fraction that is about `near`; of two as near, the even one."""
    with np.errstate(over="ignore", under="ignore"):
        first = np.float32(near)
        around = [first, *(np.nextafter(first, np.float32(end)) for end in (-np.inf, np.inf))]

    def distance(value: np.float32) -> tuple[Fraction, int]:
        # beyond the largest float lies 2^128, for which infinity stands
        known = Fraction(float(value)) if np.isfinite(value) else Fraction(2**128) * int(np.sign(value))
        return abs(exact - known), int(value.view(np.int32)) & 1

    return min(around, key=distance)


@numba.njit(nogil=True, cache=True)
def write_number(value: np.float32, out: ByteArray, place: int) -> int:
    """Write the shortest decimal of six digits or more that reads as this float; zeros at its end go.

    Returns:
        The place after it.
    """
    if np.signbit(value):
        out[place] = _MINUS
        place += 1
    if value == 0:
        out[place] = _ZERO
        return place + 1
    if np.isinf(value):
        out[place], out[place + 1], out[place + 2] = _INF
        return place + 3
    digits, scale = _shortest(np.float32(abs(value)))
    length = _num_digits(digits)
    if -_MOST_ZEROS <= length + scale <= _MOST_ZEROS:
        return _write_fixed(digits, length, scale, out, place)
    place = _write_fixed(digits, length, 1 - length, out, place)
    out[place] = _SMALL_E
    exponent = length + scale - 1
    if exponent < 0:
        out[place + 1] = _MINUS
        place += 1
    return _write_fixed(abs(exponent), _num_digits(abs(exponent)), 0, out, place + 1)


@numba.njit(nogil=True, cache=True)
def _shortest(value: np.float32) -> tuple[Int, Int]:
    """A whole number and the power of ten that it must be multiplied with, for a float above 0."""
    size = np.float64(value)
    digits, shift = np.int64(0), np.int64(0)
    first = np.int64(math.floor(math.log10(size)))
    for count in range(6, 18):  # nine always do; more, should a conversion be in doubt
        shift = count - 1 - first
        digits = np.int64(np.rint(size * _POWERS[shift] if shift >= 0 else size / _POWERS[-shift]))
        near = digits / _POWERS[shift] if shift >= 0 else digits * _POWERS[-shift]
        if np.float32(near * (1 - _MARGIN)) == value and np.float32(near * (1 + _MARGIN)) == value:
            break
    while digits % 10 == 0:
        digits //= 10
        shift -= 1
    return digits, -shift


@numba.njit(nogil=True, cache=True)
def _num_digits(number: Int) -> int:
    """How many decimal digits a whole number has that is not negative."""
    count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


@numba.njit(nogil=True, cache=True)
def _write_fixed(digits: Int, length: int, scale: Int, out: ByteArray, place: int) -> int:
    """Write `digits`, of which there are `length`, times ten to the power of `scale`."""
    before = max(length + scale, 1)  # places before the point
    after = max(-scale, 0)
    end: int = place + before + (after + 1 if after > 0 else 0)
    spot = end - 1
    for power in range(-after, before):
        if power == 0 and after > 0:
            out[spot] = _POINT
            spot -= 1
        if power < scale:
            out[spot] = _ZERO
        else:
            out[spot] = _ZERO + np.uint8(digits % 10)
            digits //= 10
        spot -= 1
    return end
