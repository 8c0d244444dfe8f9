"""LRU caches of model states after token prefixes and of next-token distributions after texts.

`PrefixCache` finds the longest cached prefix of a sequence of ids; a hash locates an entry and a
comparison of the ids confirms it, so lookups are exact. It is for one thread at a time.
`NextTokenCache` is keyed by the text itself, for autocomplete, where each key stroke inside a word
needs the same distribution; it is thread-safe. Both belong to one loaded version.
"""

import threading
from collections import OrderedDict
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from service.engine.batching import materialize

_OVERHEAD_BYTES = 500
"""Of an entry, beside its state and ids."""

_MULTIPLIER = 0x9E3779B97F4A7C15


class PrefixMatch(NamedTuple):
    """The longest beginning of a text whose state is known.

    Attributes:
        length: tokens of it; 0 if none is known.
        state: one row; None if none is known.
    """

    length: int
    state: Any


class _PrefixEntry(NamedTuple):
    ids: TokenIds
    state: Any
    num_bytes: int


class PrefixCache:
    """One row of state a text, of one version of one model; least recently used first out.

    Exact: a text is found by its ids and by nothing else. For one thread at a time.

    Args:
        max_bytes: what entries take at most, all together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[int, _PrefixEntry] = OrderedDict()
        self.num_bytes = 0
        self.queries = 0
        self.hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    def longest_match(self, ids: TokenIds) -> PrefixMatch:
        """The longest beginning of ids [T] that is known."""
        self.queries += 1
        hashes = _prefix_hashes(ids)
        for count in range(len(ids), 0, -1):
            found = hashes[count - 1]
            entry = self._entries.get(found)
            if entry is not None and np.array_equal(entry.ids, ids[:count]):
                self._entries.move_to_end(found)
                self.hits += 1
                return PrefixMatch(count, entry.state)
        return PrefixMatch(0, None)

    def put(self, ids: TokenIds, state: Any) -> None:
        """Remember the state after ids [T], one row; T is at least 1."""
        state = materialize(state)
        size = state_bytes(state) + ids.nbytes + _OVERHEAD_BYTES
        if size > self._max_bytes:
            return
        place = _prefix_hashes(ids)[-1]
        self._drop(place)
        self._entries[place] = _PrefixEntry(ids.copy(), state, size)
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, place: int) -> None:
        entry = self._entries.pop(place, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes


def state_bytes(state: Any) -> int:
    """What the arrays and tensors of a state take."""
    size = getattr(state, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(state, tuple):
        return sum(state_bytes(part) for part in state)
    if is_dataclass(state):
        return sum(state_bytes(getattr(state, part.name)) for part in fields(state))
    return 0


def _prefix_hashes(ids: TokenIds) -> list[int]:
    """A hash of each beginning of ids [T]: Σ (id + 1) · m^place, wrapping around."""
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(len(ids), _MULTIPLIER, dtype=np.uint64))
        sums: npt.NDArray[np.uint64] = np.cumsum((ids.astype(np.uint64) + np.uint64(1)) * powers)
    return [int(value) for value in sums]


class NextTokenEntry(NamedTuple):
    """A text before the caret, and what may come next.

    Attributes:
        num_tokens: of the text.
        state: after it, one row that shares no memory with others; None of a text too long to be read.
        log_probs: natural-log probabilities of the next token [1, V], likewise, not to be written; [1, 0] of one
            too long.
    """

    num_tokens: int
    state: Any = None
    log_probs: FloatArray = np.zeros((1, 0), np.float32)


class NextTokenCache:
    """Looks by the very text before them; least recently used first out. Any thread may call.

    Args:
        max_bytes: what they take at most, all together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[NextTokenEntry, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, text: str) -> NextTokenEntry | None:
        """The look after a text; None if it is not known."""
        with self._lock:
            found = self._entries.get(text)
            if found is None:
                return None
            self._entries.move_to_end(text)
            return found[0]

    def put(self, text: str, look: NextTokenEntry) -> None:
        """Remember a look, unless it is larger than all of them may be."""
        size = 4 * len(text) + state_bytes(look.state) + look.log_probs.nbytes + _OVERHEAD_BYTES
        if size > self._max_bytes:
            return
        with self._lock:
            if (before := self._entries.pop(text, None)) is not None:
                self.num_bytes -= before[1]
            self._entries[text] = (look, size)
            self.num_bytes += size
            while self.num_bytes > self._max_bytes:
                _, (_, dropped) = self._entries.popitem(last=False)
                self.num_bytes -= dropped
