"""History of one text: a window of its last tokens with the unit vector before each token.

An immutable value, cheap to extend: a range of a buffer shared with later histories of the
text, whose tokens are written after the range. The range is copied only if the buffer is full or
another continuation of the text has claimed the next entries.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, Int32s, SharedSlots

_MIN_CAPACITY = 16


class _Buffer(SharedSlots):
    """Buffer of tokens and features."""

    __slots__ = ("features", "tokens")

    def __init__(self, capacity: int, width: int) -> None:
        super().__init__(capacity)
        self.tokens = np.empty(capacity, dtype=np.int32)
        self.features = np.empty((capacity, width), dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """At most `window` tokens and their features, the newest last; immutable.

    Created by `empty` and `appended`.

    Attributes:
        window: maximum number of tokens.
        buffer: buffer of tokens and features.
        begin: slot of the oldest token.
        end: slot after the newest token.
    """

    window: int
    buffer: _Buffer
    begin: int
    end: int

    @classmethod
    def empty(cls, *, window: int, width: int) -> "History":
        """Return an empty history with unit vectors of `width` numbers; 0 without features."""
        return cls(window, _Buffer(0, width), 0, 0)

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def tokens(self) -> Int32s:
        """Tokens [N]; read-only."""
        return self.buffer.tokens[self.begin : self.end]

    @property
    def features(self) -> FloatArray:
        """Unit vector before each token [N, W]; read-only."""
        return self.buffer.features[self.begin : self.end]

    @property
    def nbytes(self) -> int:
        """Bytes of tokens and features, which other histories may share."""
        return self.tokens.nbytes + self.features.nbytes

    def appended(self, tokens: npt.NDArray[np.integer], features: FloatArray) -> "History":
        """Return the history plus tokens [K] and features [K, W], within the window."""
        if len(tokens) == 0:
            return self
        tokens, features = tokens[-self.window :], features[-self.window :]
        end = self.end + len(tokens)
        after = History(self.window, self.buffer, max(self.begin, end - self.window), end)
        if not self.buffer.claim(self.end, end):
            after = self._reallocated(len(after), len(tokens))
        added = slice(after.end - len(tokens), after.end)
        after.buffer.tokens[added] = tokens
        after.buffer.features[added] = features
        return after

    def _reallocated(self, size: int, added: int) -> "History":
        """Copy the newest tokens to a new buffer for a history of `size`, with slots for more."""
        capacity = min(max(2 * size, _MIN_CAPACITY), self.window + max(self.window // 4, _MIN_CAPACITY))
        buffer = _Buffer(capacity, self.buffer.features.shape[1])
        buffer.claim(0, size)
        num_old = size - added
        buffer.tokens[:num_old] = self.tokens[len(self) - num_old :]
        buffer.features[:num_old] = self.features[len(self) - num_old :]
        return History(self.window, buffer, 0, size)
