"""Completions that were shown while a word is typed, so that they are not shown again."""

from collections.abc import Iterable

MAX_SHOWN = 256
"""Maximum completions of a word that are remembered; the oldest are forgotten first."""


class ShownCompletions:
    """Completions shown while one word is typed: a deletion or another word begins anew.

    Of the typed text only a hash is stored.
    """

    __slots__ = ("_earlier", "_last", "_place")

    def __init__(self) -> None:
        self._place = 0, 0, hash("")  # start of the word, length and hash of the text
        self._earlier: tuple[str, ...] = ()
        self._last: tuple[str, ...] = ()  # shown at this place

    @property
    def num_bytes(self) -> int:
        """Approximate memory of the texts."""
        return sum(100 + 4 * len(text) for text in (*self._earlier, *self._last))

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
