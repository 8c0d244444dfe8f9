"""Handles of states that a decoder has let go of, freed with whatever is asked next."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from service.client.states import States

_AT_ONCE = 1000
"""Handles that one request frees at most; a service takes so many unless it was told to take fewer."""


class Dropped:
    """Gathers handles; any thread may add one, the garbage collector's included."""

    def __init__(self) -> None:
        self._handles: deque[str] = deque()

    def add(self, handle: str) -> None:
        """A handle that nobody needs."""
        self._handles.append(handle)

    @contextmanager
    def taken(self) -> Iterator[list[str]]:
        """Some of them, for what is asked meanwhile to free; if it fails they are gathered still."""
        some = [self._handles.popleft() for _ in range(min(len(self._handles), _AT_ONCE))]
        freed = False
        try:
            yield some
            freed = True
        finally:
            if not freed:
                self._handles.extendleft(reversed(some))

    def free(self, states: States) -> None:
        """Free all of them.

        Raises:
            GramophoneError: the service does not answer, or refuses.
        """
        while self._handles:
            with self.taken() as some:
                states.free(some)


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
