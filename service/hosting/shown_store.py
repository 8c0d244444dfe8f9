"""Store of the completions that sessions have shown, in memory."""

import time
from collections.abc import Callable
from copy import copy

from models.completion.shown import ShownCompletions
from models.prefix_cache import LimitedCache

_MAX_BYTES = 16 << 20
_OVERHEAD_BYTES = 1000
"""Estimated memory of a session besides the texts."""

_TTL_S = 600.0
"""Time without a request after which what a session has shown is offered again."""


class ShownStore:
    """Shown completions by owner and session; thread-safe. The least recently used are forgotten first.

    Args:
        max_bytes: maximum memory of all sessions together.
        clock: monotonic clock in seconds.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache = LimitedCache[tuple[str, str], tuple[ShownCompletions, float]](max_bytes)
        self._clock = clock

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._cache)

    def find(self, owner: str, session: str) -> ShownCompletions:
        """Return a copy of what a session has shown, for a request to extend."""
        shown, used_s = self._cache.find((owner, session)) or (None, 0.0)
        return ShownCompletions() if shown is None or used_s < self._clock() - _TTL_S else copy(shown)

    def keep(self, owner: str, session: str, shown: ShownCompletions) -> None:
        """Replace what a session has shown."""
        self._cache.insert((owner, session), (shown, self._clock()), _OVERHEAD_BYTES + shown.num_bytes)
