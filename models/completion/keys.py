"""Keyboards: the letters that a touch of a screen may mean."""

import math
from collections.abc import Mapping
from functools import cache

_ROWS = {
    "qwerty": ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    "qwertz": ("qwertzuiop\u00fc", "asdfghjkl\u00f6\u00e4", "yxcvbnm"),
    "azerty": ("azertyuiop", "qsdfghjklm", "wxcvbn"),
}
LAYOUTS = tuple(_ROWS)
"""Names of keyboards."""

_INDENTS = (0.0, 0.25, 0.75)
"""Left edge of each row, in key widths."""

_NOISE = 0.4
"""Standard deviation of touches around the middle of a key, in key widths and heights."""

_MAX_DISTANCE = 2.0
"""Distance from the middle of a key beyond which it is not meant, unless all are further."""


@cache
def key_centres(layout: str) -> Mapping[str, tuple[float, float]]:
    """Return the middle of each letter's key, in key widths and heights from the keyboard's upper left corner."""
    return {
        letter: (indent + column + 0.5, row + 0.5)
        for row, (letters, indent) in enumerate(zip(_ROWS[layout], _INDENTS, strict=True))
        for column, letter in enumerate(letters)
    }


def letters_of_touch(x: float, y: float, layout: str) -> dict[str, float]:
    """Return the probability of each letter that a touch may mean."""
    distances = {letter: math.dist((x, y), centre) for letter, centre in key_centres(layout).items()}
    least = min(distances.values())
    weights = {
        letter: math.exp((least**2 - distance**2) / (2 * _NOISE**2))
        for letter, distance in distances.items()
        if distance <= max(_MAX_DISTANCE, least)
    }
    total = sum(weights.values())
    return {letter: weight / total for letter, weight in weights.items()}
