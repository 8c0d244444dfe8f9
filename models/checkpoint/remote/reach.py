"""Asking a store that may be out of reach, and what is known instead."""

import logging
from collections.abc import Callable
from typing import TypeVar

from models.errors import RegistryError

R = TypeVar("R")
_log = logging.getLogger(__name__)
_RETRY_AFTER_S = 10.0
"""For so long after a failure questions are answered from what is known, without asking again."""


class CircuitBreaker:
    """Whether a store can be reached, as the last question showed.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failure: RegistryError | None = None
        self._failed_s = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether the last question was answered by the store."""
        return self._failure is None

    def reset(self) -> None:
        """The store has answered: ask it again."""
        self._failure = None

    def call(self, ask: Callable[[], R], remember: Callable[[], R | None]) -> R:
        """Ask the store, or else tell what is known.

        Args:
            ask: the store.
            remember: what is known; None if nothing is.

        Raises:
            RegistryError: the store cannot be reached, and nothing is known.
        """
        failure = self._failure
        if failure is None or self._clock() - self._failed_s >= _RETRY_AFTER_S:
            try:
                answer = ask()
            except RegistryError as error:
                failure = self._failure = error
                self._failed_s = self._clock()
                _log.warning("registry out of reach, answering by what was fetched before: %s", error)
            else:
                self._failure = None
                return answer
        known = remember()
        if known is None:
            raise RegistryError(str(failure))
        return known
