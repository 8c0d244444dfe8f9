"""Of requests of one session the newest alone is answered: what was typed before is no longer of interest."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from models.errors import SupersededError


class AutocompleteSessions:
    """The requests under way that are the newest of their session. Belongs to the event loop."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], asyncio.Future[Any]] = {}

    def __len__(self) -> int:
        """Sessions with a request under way."""
        return len(self._newest)

    def supersede(self, owner: str, session: str) -> None:
        """A newer request has come: the one under way, if there is one, is given up."""
        before = self._newest.pop((owner, session), None)
        if before is not None:
            before.cancel()

    @contextmanager
    def newest(self, owner: str, session: str, answer: "asyncio.Future[Any]") -> Iterator[None]:
        """While the block waits for an answer, it is that of the newest request of its session.

        Args:
            owner: whose session it is.
            session: its name.
            answer: to come; it is cancelled when a newer request comes, which gives up its work.

        Raises:
            SupersededError: a newer one has come before the answer.
        """
        self.supersede(owner, session)
        self._newest[owner, session] = answer
        try:
            yield
        except asyncio.CancelledError:
            if self._is_newest(owner, session, answer):  # whoever cancelled it, it was no newer request
                raise
            raise SupersededError(f"a newer request of the session {session!r} has come") from None
        finally:
            if self._is_newest(owner, session, answer):
                del self._newest[owner, session]

    def _is_newest(self, owner: str, session: str, answer: "asyncio.Future[Any]") -> bool:
        return self._newest.get((owner, session)) is answer
