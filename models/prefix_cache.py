"""LRU caches of model states after token prefixes and of next-token distributions after texts."""

import threading
from collections import OrderedDict
from dataclasses import fields, is_dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.calls import materialize

_OVERHEAD_BYTES = 500
"""Estimated memory of an entry besides its state and ids."""

_MAX_SHARE = 1 / 8
"""Maximum share of a `NextTokenCache` for the readings after one text."""

_MULTIPLIER = 0x9E3779B97F4A7C15


ContextKey: TypeAlias = str | tuple[str, str]
"""Text before the caret, after the lines before it if any are read."""

K = TypeVar("K")
V = TypeVar("V")


class LimitedCache(Generic[K, V]):
    """Thread-safe LRU cache with a limit on the total size.

    Args:
        max_bytes: maximum size of all entries together; a larger single entry is not cached.

    Attributes:
        num_bytes: size of all entries together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: K) -> V | None:
        """Return a key's value and mark it as used; None if it is not cached."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def insert(self, key: K, value: V, size: int) -> None:
        """Cache a value of `size` bytes, or of another unit."""
        if size > self._max_bytes:
            return
        with self._lock:
            self.num_bytes += size - self._entries.pop(key, (None, 0))[1]
            self._entries[key] = (value, size)
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= self._entries.popitem(last=False)[1][1]

    def remove(self, key: K) -> None:
        """Forget a key's value, if it is cached."""
        with self._lock:
            self.num_bytes -= self._entries.pop(key, (None, 0))[1]


class PrefixCache(LimitedCache[int, tuple[TokenIds, Any]]):
    """LRU cache of states after token prefixes, of one model version.

    Exact: a hash locates an entry, a comparison of the ids confirms it.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.queries = 0
        self.hits = 0

    def longest_match(self, ids: TokenIds) -> tuple[int, Any]:
        """Find the longest cached prefix of ids [T].

        Returns:
            Length of the prefix and the state after it, one row; 0 and None without a match.
        """
        self.queries += 1
        hashes = _prefix_hashes(ids).tolist()
        for count in range(len(ids), 0, -1):
            key = hashes[count - 1]
            if key in self._entries:
                found = self.find(key)
                if found is not None and np.array_equal(found[0], ids[:count]):
                    self.hits += 1
                    return count, found[1]
        return 0, None

    def put(self, ids: TokenIds, state: Any) -> None:
        """Cache the state after ids [T], one row; T is at least 1."""
        state = materialize(state)
        size = state_bytes(state) + ids.nbytes + _OVERHEAD_BYTES
        self.insert(int(_prefix_hashes(ids)[-1]), (ids.copy(), state), size)


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


def _prefix_hashes(ids: TokenIds) -> npt.NDArray[np.uint64]:
    """Compute the hash of each prefix of ids [T]: Σ (id + 1) · m^position modulo 2^64, position from 1."""
    powers = np.full(len(ids), _MULTIPLIER, np.uint64).cumprod()
    hashes: npt.NDArray[np.uint64] = ((ids.astype(np.uint64) + np.uint64(1)) * powers).cumsum()
    return hashes


class Evidence(NamedTuple):
    """Log-probabilities of the last words of a text, for the weights of several models.

    Attributes:
        start: start of the word being typed, before which they are.
        log_probs: ln P(word | earlier text) of each, and of what follows them [N + 1].
    """

    start: int
    log_probs: npt.NDArray[np.float64]


class Readings(dict[int, Any]):
    """Readings of longer texts by searches, by the next token.

    Attributes:
        num_bytes: size of all of it.
    """

    num_bytes = 0


class NextTokenEntry(NamedTuple):
    """Next-token distribution after a text before the caret.

    Attributes:
        num_tokens: tokens of the text.
        state: state after the text, one row that shares no memory; None if the text was too long to read.
        log_probs: natural-log probabilities of the next token [1, V], unshared and read-only; [1, 0] if too long.
        evidence: log-probabilities of its last words, once a request has needed them.
        longer: readings of texts with more tokens by searches, see `models.completion.search.Reading`.
    """

    num_tokens: int
    state: Any = None
    log_probs: FloatArray = np.zeros((1, 0), np.float32)
    evidence: Evidence | None = None
    longer: Readings | None = None


def context_key(context: str, before: str) -> ContextKey:
    """Return the key of a context and the lines before it."""
    return (before, context) if before else context


class NextTokenCache(LimitedCache[ContextKey, NextTokenEntry]):
    """LRU cache of next-token distributions by text: every keystroke in a word needs the same."""

    def put(self, key: ContextKey, entry: NextTokenEntry) -> None:
        """Cache an entry; of the readings of longer texts, at most `_MAX_SHARE` of the cache."""
        size = 4 * len("".join(key)) + state_bytes(entry.state) + entry.log_probs.nbytes + _OVERHEAD_BYTES
        longer = 0 if entry.longer is None else entry.longer.num_bytes
        if longer > self._max_bytes * _MAX_SHARE:
            entry, longer = entry._replace(longer=Readings()), 0
        self.insert(key, entry, size + longer)
