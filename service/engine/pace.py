"""How fast each kind of call is done, so that a slice takes the time that it should."""

from collections.abc import Hashable

_INITIAL_TOKEN_COST_S = 2e-5
"""Seconds a token is taken to cost before any was read."""

_MAX_KINDS = 256
_SMOOTHING = 0.8
"""How much of what was known of a pace is kept when it is measured anew."""


class CostModel:
    """Seconds a token, by kind of call."""

    def __init__(self) -> None:
        self._seconds_per_token: dict[Hashable, float] = {}

    def tokens(self, kind: Hashable, seconds: float) -> int:
        """How many are done in so many seconds, roughly."""
        return int(seconds / self._seconds_per_token.get(kind, _INITIAL_TOKEN_COST_S))

    def update(self, kind: Hashable, tokens: int, seconds: float) -> None:
        """So many took so long."""
        if not tokens or seconds <= 0:
            return
        each = seconds / tokens
        before = self._seconds_per_token.get(kind, each)
        if len(self._seconds_per_token) > _MAX_KINDS:  # of models long gone
            self._seconds_per_token.clear()
        self._seconds_per_token[kind] = _SMOOTHING * before + (1 - _SMOOTHING) * each
