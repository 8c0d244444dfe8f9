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
"""Estimated memory of an entry beside its state and ids."""

_MULTIPLIER = 0x9E3779B97F4A7C15


class PrefixMatch(NamedTuple):
    """The longest cached prefix of a text.

    Attributes:
        length: its number of tokens; 0 if none is cached.
        state: one row; None if none is cached.
    """

    length: int
    state: Any


class _PrefixEntry(NamedTuple):
    ids: TokenIds
    state: Any
    num_bytes: int


class PrefixCache:
    """LRU cache of states after token prefixes, of one model version; for one thread at a time.

    Exact: a hit requires equal ids.

    Args:
        max_bytes: maximum size of all entries together.
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
        """Find the longest cached prefix of ids [T]."""
        self.queries += 1
        hashes = _prefix_hashes(ids)
        for count in range(len(ids), 0, -1):
            key = hashes[count - 1]
            entry = self._entries.get(key)
            if entry is not None and np.array_equal(entry.ids, ids[:count]):
                self._entries.move_to_end(key)
                self.hits += 1
                return PrefixMatch(count, entry.state)
        return PrefixMatch(0, None)

    def put(self, ids: TokenIds, state: Any) -> None:
        """Cache the state after ids [T], one row; T is at least 1. An entry above `max_bytes` is not cached."""
        state = materialize(state)
        size = state_bytes(state) + ids.nbytes + _OVERHEAD_BYTES
        if size > self._max_bytes:
            return
        key = _prefix_hashes(ids)[-1]
        self._drop(key)
        self._entries[key] = _PrefixEntry(ids.copy(), state, size)
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: int) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes


def state_bytes(state: Any) -> int:
    """Return the size of the arrays and tensors of a state in bytes."""
    size = getattr(state, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(state, tuple):
        return sum(state_bytes(part) for part in state)
    if is_dataclass(state):
        return sum(state_bytes(getattr(state, part.name)) for part in fields(state))
    return 0


def _prefix_hashes(ids: TokenIds) -> list[int]:
    """Compute the hash of each prefix of ids [T]: Σ (id + 1) · m^position modulo 2^64, position from 1."""
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(len(ids), _MULTIPLIER, dtype=np.uint64))
        sums: npt.NDArray[np.uint64] = np.cumsum((ids.astype(np.uint64) + np.uint64(1)) * powers)
    return [int(value) for value in sums]


class NextTokenEntry(NamedTuple):
    """Next-token distribution after a text before the caret.

    Attributes:
        num_tokens: of the text.
        state: one row after the text, sharing no memory with others; None if the text was too long to be read.
        log_probs: natural-log probabilities of the next token [1, V], unshared and read-only; [1, 0] if too long.
    """

    num_tokens: int
    state: Any = None
    log_probs: FloatArray = np.zeros((1, 0), np.float32)


class NextTokenCache:
    """LRU cache of next-token distributions by text; thread-safe.

    Args:
        max_bytes: maximum size of all entries together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[NextTokenEntry, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, text: str) -> NextTokenEntry | None:
        """Return the entry of a text, or None if it is not cached."""
        with self._lock:
            found = self._entries.get(text)
            if found is None:
                return None
            self._entries.move_to_end(text)
            return found[0]

    def put(self, text: str, entry: NextTokenEntry) -> None:
        """Cache an entry, unless it alone exceeds `max_bytes`."""
        size = 4 * len(text) + state_bytes(entry.state) + entry.log_probs.nbytes + _OVERHEAD_BYTES
        if size > self._max_bytes:
            return
        with self._lock:
            if (before := self._entries.pop(text, None)) is not None:
                self.num_bytes -= before[1]
            self._entries[text] = (entry, size)
            self.num_bytes += size
            while self.num_bytes > self._max_bytes:
                _, (_, dropped) = self._entries.popitem(last=False)
                self.num_bytes -= dropped
