"""Handles of states that a decoder has let go of, freed with whatever is asked next."""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from service.client.errors import StateElsewhereError
from service.client.states import States

_MAX_HANDLES = 1000
"""Handles that one request frees at most; a service takes so many unless it was told to take fewer."""


class ReleasedHandles:
    """Gathers handles; any thread may add one, the garbage collector's included.

    Those of each process by themselves: it refuses to free what another keeps, and a service that is started again
    has another name.
    """

    def __init__(self) -> None:
        self._by_process: dict[str, deque[str]] = {}

    def add(self, handle: str) -> None:
        """A handle that nobody needs."""
        self._queue_of(handle).append(handle)

    def batch_for(self, asked: str) -> AbstractContextManager[list[str]]:
        """Some handles, for what is asked meanwhile to free; if it fails they are gathered still.

        Args:
            asked: the handle that it is asked about, whose process keeps the states.
        """
        return _pop_batch(self._queue_of(asked))

    def free(self, states: States) -> None:
        """Free all of them; what another process keeps than the one that answers ends there by itself.

        Raises:
            GramophoneError: the service does not answer, or refuses.
        """
        for process, handles in [*self._by_process.items()]:
            try:
                while handles:
                    with _pop_batch(handles) as some:
                        states.free(some)
            except StateElsewhereError:
                del self._by_process[process]

    def _queue_of(self, handle: str) -> deque[str]:
        return self._by_process.setdefault(handle.partition(".")[0], deque())


class StateHandle:
    """A handle that is dropped when the last reference to it goes.

    Args:
        handle: of a state.
        dropped: where it is added then.
    """

    __slots__ = ("_dropped", "handle")

    def __init__(self, handle: str, dropped: ReleasedHandles) -> None:
        self.handle = handle
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.add(self.handle)


@contextmanager
def _pop_batch(handles: deque[str]) -> Iterator[list[str]]:
    """The first of some handles, which are put back if the block fails."""
    some = [handles.popleft() for _ in range(min(len(handles), _MAX_HANDLES))]
    freed = False
    try:
        yield some
        freed = True
    finally:
        if not freed:
            handles.extendleft(reversed(some))
