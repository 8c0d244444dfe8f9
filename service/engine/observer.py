"""Who is told what the scheduler does."""

from typing import Protocol


class SchedulerObserver(Protocol):
    """Told what happens, on whatever thread it does."""

    def started(self, waited_s: float) -> None:
        """A job had its first step after so many seconds."""
        ...

    def rejected(self, reason: str) -> None:
        """A job was not admitted: `requests`, `tokens` or `draining`."""
        ...

    def ended(self, how: str) -> None:
        """A job ended: `done`, `failed`, `cancelled` or `deadline`."""
        ...

    def answered(self, kind: str, rows: int) -> None:
        """So many rows of calls of a kind were answered in one batch."""
        ...


class NullSchedulerObserver:
    """Nobody is told."""

    def started(self, waited_s: float) -> None:
        """Ignore it."""

    def rejected(self, reason: str) -> None:
        """Ignore it."""

    def ended(self, how: str) -> None:
        """Ignore it."""

    def answered(self, kind: str, rows: int) -> None:
        """Ignore it."""
