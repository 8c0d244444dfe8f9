"""Stop strings over a text that arrives in pieces."""

from collections.abc import Sequence
from typing import NamedTuple


class StopStrings:
    """Lets text through up to the first stop string, which is never let through.

    Text is held back only while its end could be the beginning of a stop string.

    Args:
        stops: non-empty strings; none means that nothing is ever held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that has become certain not to belong to a stop string; empty once stopped."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text held back, now that no more will come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a proper beginning of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class Tail(NamedTuple):
    """What there is to remember of a text in which a stop string may come.

    Attributes:
        raw: its end, in which one may have begun.
        begun: whether there is any text.
        stopped: whether it has one.
    """

    raw: bytes = b""
    begun: bool = False
    stopped: bool = False


class StopBytes:
    """Finds stop strings in texts that branch, where what is remembered of each must be a value.

    Args:
        stops: non-empty strings, at least one.
        token_bytes: what each token adds to a text [V].
        strip_space: whether the space that the first token brings is none of the text's.
    """

    def __init__(self, stops: Sequence[str], token_bytes: Sequence[bytes], *, strip_space: bool) -> None:
        self._stops = tuple(stop.encode() for stop in stops)
        self._token_bytes = token_bytes
        self._strip_space = strip_space
        self._kept = max(map(len, self._stops)) - 1

    def advance(self, tail: Tail, token: int) -> Tail:
        """The text with one more token."""
        raw = self._token_bytes[token]
        if self._strip_space and not tail.begun:
            begun, raw = bool(raw), raw.removeprefix(b" ")
        else:
            begun = True
        text = tail.raw + raw
        stopped = any(stop in text for stop in self._stops)
        return Tail(text[max(0, len(text) - self._kept) :], begun, stopped)
