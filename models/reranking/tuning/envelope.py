"""Upper envelope of straight lines, compiled: the best candidate of each list along a line.

On the line w + γ·d in weight space, a candidate's total is a straight line in γ of value f·w and
slope f·d. The best candidates from γ = −∞ to ∞ are the pieces of the upper envelope; a list of K
candidates has at most K pieces (Och 2003, Minimum Error Rate Training in Statistical Machine
Translation, §5).
"""

from typing import Any

import numba
from numba import types

from models.kernels.compilation import kernel

_NONE = -1
_INTS, _DOUBLES = types.int64[::1], types.float64[::1]


@numba.njit(nogil=True, error_model="numpy")
def _next_winner(values: Any, slopes: Any, begin: Any, end: Any, winner: Any) -> Any:
    """Find the first, or steepest, to overtake the winner, and where; or _NONE."""
    after, at = _NONE, 0.0
    for one in range(begin, end):
        if slopes[one] > slopes[winner]:
            crossing = (values[winner] - values[one]) / (slopes[one] - slopes[winner])
            line = slopes[one], values[one]
            if after == _NONE or crossing < at or (crossing == at and line > (slopes[after], values[after])):
                after, at = one, crossing
    return after, at


@kernel(types.int64(_DOUBLES, _DOUBLES, _INTS, _INTS, _DOUBLES, _INTS, _INTS), error_model="numpy")
def upper_envelopes(
    values: Any, slopes: Any, offsets: Any, first: Any, breaks: Any, previous: Any, entering: Any
) -> Any:
    """Find each list's winner at γ = −∞, and where its winner changes.

    Args:
        values: total of each candidate at γ = 0 [C].
        slopes: slope of each candidate [C].
        offsets: start of each list, and the end [N+1]; no list is empty.
        first: output: first winners [N].
        breaks: output: values of γ at which winners change, list by list [C].
        previous: output: winner before each change [C].
        entering: output: winner after each change [C].

    Returns:
        Number of changes.
    """
    count = 0
    for one in range(len(offsets) - 1):
        begin, end = offsets[one], offsets[one + 1]
        winner = begin  # at −∞: smallest slope, then largest value, then first
        for candidate in range(begin + 1, end):
            if slopes[candidate] < slopes[winner] or (
                slopes[candidate] == slopes[winner] and values[candidate] > values[winner]
            ):
                winner = candidate
        first[one] = winner
        # at most K pieces, each found in O(K)
        while True:
            after, at = _next_winner(values, slopes, begin, end, winner)
            if after == _NONE:
                break
            breaks[count], previous[count], entering[count] = at, winner, after
            count += 1
            winner = after
    return count
