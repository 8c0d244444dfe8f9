"""Handles of states that a decoder has let go of, freed with whatever is asked next."""

from collections import deque


class Dropped:
    """Gathers handles; any thread may add one, the garbage collector's included."""

    def __init__(self) -> None:
        self._handles: deque[str] = deque()

    def add(self, handle: str) -> None:
        """A handle that nobody needs."""
        self._handles.append(handle)

    def take(self) -> list[str]:
        """All that were added since, to be freed by whoever takes them."""
        return [self._handles.popleft() for _ in range(len(self._handles))]


class Held:
    """A handle that is dropped when the last reference to it goes.

    Args:
        handle: of a state.
        dropped: where it is added then.
    """

    __slots__ = ("_dropped", "handle")

    def __init__(self, handle: str, dropped: Dropped) -> None:
        self.handle = handle
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.add(self.handle)
