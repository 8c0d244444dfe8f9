"""Stop strings in text that arrives in pieces, and the token sequences that spell a text."""

from collections.abc import Sequence
from typing import NamedTuple

from models.tokenizers import Tokenizer
from models.vocabulary import UNK

_PRECEDING = ("a", "e", "s", ".")
"""Characters before a text that is tokenised in the middle of a word."""


class StopStrings:
    """Filter that passes text up to the first stop string.

    Text is held back only while its end may be the beginning of a stop string.

    Args:
        stops: non-empty strings; without any, no text is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Return text certainly in no stop string; empty after a stop."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [offset for stop in self._stops if (offset := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return the text held back, at the end of the input."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix that properly begins the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class Tail(NamedTuple):
    """Search state of a text that may have a stop string.

    Attributes:
        raw: the end of the text, which may be the beginning of a stop string.
        begun: True if the text is not empty.
        stopped: True if the text has a stop string.
    """

    raw: bytes = b""
    begun: bool = False
    stopped: bool = False


class StopBytes:
    """Search for stop strings in texts that branch; a text's state is an immutable value.

    Args:
        stops: non-empty strings, at least one.
        token_bytes: bytes that each token adds to a text [V].
        strip_space: True if the leading space of the first token is not part of the text.
    """

    def __init__(self, stops: Sequence[str], token_bytes: Sequence[bytes], *, strip_space: bool) -> None:
        self._stops = tuple(stop.encode() for stop in stops)
        self._token_bytes = token_bytes
        self._strip_space = strip_space
        self._kept = max(map(len, self._stops)) - 1

    def advance(self, tail: Tail, token: int) -> Tail:
        """Append a token to a text."""
        raw = self._token_bytes[token]
        if self._strip_space and not tail.begun:
            begun, raw = bool(raw), raw.removeprefix(b" ")
        else:
            begun = True
        text = tail.raw + raw
        stopped = any(stop in text for stop in self._stops)
        return Tail(text[max(0, len(text) - self._kept) :], begun, stopped)


def spellings(tokenizer: Tokenizer, text: str) -> list[tuple[int, ...]]:
    """Return distinct token sequences that spell a text at a word's start or inside.

    Other spellings may exist, and within a word the first token may include earlier characters.
    Sequences with an unknown word are omitted.
    """
    text = tokenizer.normaliser(text)
    raw, token_bytes = text.encode(), tokenizer.token_bytes
    found = [tuple(tokenizer.encode(text))]
    if (piece := tokenizer.vocabulary.ids.get(text)) is not None:
        found.append((piece,))
    for before in _PRECEDING:
        ids, num_before = tokenizer.encode_after(before, text)
        found.append(tuple(ids[num_before:]))
    apart = [ids for ids in found[1:] if b"".join(token_bytes[i] for i in ids) == raw]
    return [ids for ids in dict.fromkeys([found[0], *apart]) if ids and UNK not in ids]
