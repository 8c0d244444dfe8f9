"""Times as people write them: `50ms`, `2s`, `1.5min`."""

import math
import re

from models.errors import InvalidInputError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(us|ms|s|min)")


def parse_duration_s(text: str, parameter: str) -> float:
    """Seconds of a time with its unit; `0` needs none.

    Args:
        text: a number and `us`, `ms`, `s` or `min`.
        parameter: what it is the value of, for the message.

    Raises:
        InvalidInputError: it is no time.
    """
    if text == "0":
        return 0.0
    found = _TIME.fullmatch(text)
    if found is None or math.isinf(float(found[1])):
        raise InvalidInputError(
            f"{parameter} is {text!r}; it must be a number with us, ms, s or min after it, such as 200ms",
            parameter=parameter,
        )
    return float(found[1]) * _SECONDS[found[2]]
