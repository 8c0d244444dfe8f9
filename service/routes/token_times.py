"""When a stream's tokens were sent: what its reader waits for."""

import time

from service.engine.metrics import Metrics


class TokenLatencies:
    """Tells the metrics how long each choice's tokens were waited for, from now on.

    Args:
        metrics: are told.
        model: the address they are counted under.
    """

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._first = metrics.first_token.labels(model)
        self._next = metrics.inter_token.labels(model)
        self._begun_s = time.perf_counter()
        self._before_s: dict[int, float] = {}

    def record(self, choice: int) -> None:
        """A token of this choice is sent."""
        now_s = time.perf_counter()
        before_s = self._before_s.get(choice)
        if before_s is None:
            self._first.observe(now_s - self._begun_s)
        else:
            self._next.observe(now_s - before_s)
        self._before_s[choice] = now_s
