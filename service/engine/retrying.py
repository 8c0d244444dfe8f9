"""When loading what could not be loaded is tried again: less and less often."""

from collections.abc import Callable
from typing import NamedTuple

FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 600.0


class _Failure(NamedTuple):
    attempts: int
    retry_at_s: float


class RetrySchedule:
    """Remembers what failed, and when it may be tried again.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: dict[str, _Failure] = {}

    def record_failure(self, address: str) -> None:
        """It has failed once more; the wait is twice as long as the last."""
        times = self._failed[address].attempts + 1 if address in self._failed else 1
        wait_s = min(FIRST_RETRY_S * 2.0 ** min(times - 1, 30), LONGEST_RETRY_S)
        self._failed[address] = _Failure(times, self._clock() + wait_s)

    def make_all_due(self) -> None:
        """Whatever waits may be tried now: what it failed for may be over."""
        now_s = self._clock()
        for address, failed in self._failed.items():
            self._failed[address] = failed._replace(retry_at_s=now_s)

    def forget(self, address: str) -> None:
        """It is there, or nobody wants it."""
        self._failed.pop(address, None)

    def is_due(self, address: str) -> bool:
        """Whether it may be tried now."""
        failed = self._failed.get(address)
        return failed is None or self._clock() >= failed.retry_at_s
