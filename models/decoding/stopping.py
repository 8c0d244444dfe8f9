"""Stop texts in text that arrives in pieces, and the token sequences that spell a text."""

from collections.abc import Sequence
from typing import NamedTuple

from models.tokenizers import Tokenizer
from models.vocabulary import UNK


class StopStrings:
    """Filter of text that passes everything before the first stop string.

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
        found = [offset for stop in self._stops if (offset := text.find(stop)) >= 0]
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
    """Search state of a text that may contain a stop string.

    Attributes:
        raw: its end, in which one may have begun.
        begun: whether there is any text.
        stopped: whether it has one.
    """

    raw: bytes = b""
    begun: bool = False
    stopped: bool = False


class StopBytes:
    """Search for stop strings in texts that branch; the state of each text is an immutable value.

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


_PRECEDING = ("a", "e", "s", ".")
"""Characters after which a text is tokenised, for the tokens that spell it in the middle of a word."""


def spellings(tokenizer: Tokenizer, text: str) -> list[tuple[int, ...]]:
    """The tokens that spell a text at the start of a word and those that do in the middle of one, each once.

    A tokenizer may know other ways to spell it, and in the middle of a word its tokens may be joined
    with what is before them. What has an unknown word is no spelling.
    """
    raw, token_bytes = text.encode(), tokenizer.token_bytes
    found = [tuple(tokenizer.encode(text))]
    if (piece := tokenizer.vocabulary.ids.get(text)) is not None:
        found.append((piece,))
    for before in _PRECEDING:
        ids, num_before = tokenizer.encode_after(before, text)
        found.append(tuple(ids[num_before:]))
    apart = [ids for ids in found[1:] if b"".join(token_bytes[i] for i in ids) == raw]
    return [ids for ids in dict.fromkeys([found[0], *apart]) if ids and UNK not in ids]
