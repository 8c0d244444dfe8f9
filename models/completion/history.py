"""Completions that were shown while a word is typed, so that they are not shown again."""

import time
from collections.abc import Callable, Iterable
from copy import copy

from models.prefix_cache import LimitedCache

MAX_SHOWN = 256
"""Maximum completions of a word that are remembered; the oldest are forgotten first."""

_MAX_BYTES, _OVERHEAD_BYTES = 16 << 20, 1000
_TTL_S = 600.0
"""Time after which what was shown is offered again."""


class CompletionHistory:
    """Completions shown while one word is typed: a deletion or another word begins anew."""

    __slots__ = ("_earlier", "_last", "_place")

    def __init__(self) -> None:
        self._place = 0, 0, hash("")  # start of the word, length and hash of the text
        self._earlier: tuple[str, ...] = ()
        self._last: tuple[str, ...] = ()  # shown at this place

    @property
    def num_bytes(self) -> int:
        """Approximate memory."""
        return _OVERHEAD_BYTES + sum(100 + 4 * len(text) for text in (*self._earlier, *self._last))

    def before(self, text: str, start: int) -> tuple[str, ...]:
        """Return what was shown for the word at `start` before it was typed as far as in `text`."""
        begun, length, digest = self._place
        if begun != start or hash(text[:length]) != digest or len(text) < length:
            return ()
        return self._earlier if len(text) == length else (*self._earlier, *self._last)[-MAX_SHOWN:]

    def add(self, text: str, start: int, shown: Iterable[str]) -> None:
        """Remember the completions shown after a text, for the word at `start`."""
        self._earlier = self.before(text, start)
        self._place, self._last = (start, len(text), hash(text)), tuple(shown)


class HistoryStore(LimitedCache[tuple[str, str], tuple[CompletionHistory, float]]):
    """Histories by owner and session, in memory; the least recently used are forgotten first; thread-safe.

    Args:
        max_bytes: maximum memory of all histories together.
        clock: monotonic clock in seconds.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(max_bytes)
        self._clock = clock

    def get(self, owner: str, session: str) -> CompletionHistory:
        """Return a copy of a session's history, for a request to extend."""
        known = self.find((owner, session))
        return copy(known[0]) if known and known[1] >= self._clock() - _TTL_S else CompletionHistory()

    def keep(self, owner: str, session: str, history: CompletionHistory) -> None:
        """Replace a session's history."""
        self.insert((owner, session), (history, self._clock()), history.num_bytes)
