"""What models said after texts that somebody is typing after: every key of a word asks for the same.

One per loaded version, which it goes with.
"""

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray
from service.engine.prefixes import state_bytes

_OVERHEAD_BYTES = 500


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
