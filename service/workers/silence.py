"""Workers that are there and do nothing: hung, stopped, or in a model call that never ends."""

from collections.abc import Callable

from service.workers.board import HEARTBEAT_INTERVAL_S, SharedStatus

_MAX_MISSED_HEARTBEATS = 5


class Watchdog:
    """Finds workers that have said nothing for some time.

    It counts its own looks, not seconds: when the whole machine was held up, or all processes of a container were, the
    supervisor could not look either, and takes nobody's silence amiss.

    Args:
        board: where workers say that they are alive.
        size: how many there are.
        patience_s: how long one may be silent; 0 is for ever. Five beats it always may.
        clock: seconds, monotonic.
    """

    def __init__(
        self, board: SharedStatus, size: int, *, patience_s: float, clock: Callable[[], float]
    ) -> None:
        self._status = board
        self._every_s = max(patience_s / _MAX_MISSED_HEARTBEATS, HEARTBEAT_INTERVAL_S) if patience_s else 0.0
        self._clock = clock
        self._last_heartbeats = [0] * size
        self._missed = [0] * size  # that found nothing new
        self._due_s = clock() + self._every_s

    @property
    def due_s(self) -> float | None:
        """When to look next; None where nobody is to."""
        return self._due_s if self._every_s else None

    def hung_workers(self) -> list[int]:
        """Look, if it is time to; the workers that have been silent for too long, each told once.

        One that has never spoken is being started, which may take its time.
        """
        if not self._every_s or self._clock() < self._due_s:
            return []
        self._due_s = self._clock() + self._every_s
        found = []
        for worker, count in enumerate(self._status.heartbeats):
            is_silent = count > 0 and count == self._last_heartbeats[worker]
            self._missed[worker] = self._missed[worker] + 1 if is_silent else 0
            self._last_heartbeats[worker] = count
            if self._missed[worker] == _MAX_MISSED_HEARTBEATS:
                found.append(worker)
        return found
