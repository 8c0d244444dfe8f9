"""One request of a load, and the observation of it."""

import asyncio
import time

from service.load.connection import ExchangeError, Reply
from service.load.events import error_message
from service.load.loads import ClosedLoop
from service.load.observation import TIMEOUT, Observation, Recording
from service.load.pool import ConnectionPool
from service.load.target import Target


class RequestSender:
    """Sends requests to a target and adds what it sees to a recording.

    Args:
        target: who is asked.
        recording: what is added to; its terms bound connections and time.
    """

    def __init__(self, target: Target, recording: Recording) -> None:
        load, terms = recording.load, recording.terms
        self._recording = recording
        self._timeout_s = terms.timeout_s
        self._pool = ConnectionPool(
            target, load.clients if isinstance(load, ClosedLoop) else terms.max_connections
        )

    async def send(self, intended_s: float, data: bytes, num_items: int) -> bool:
        """Send the bytes of a request that was due at a time; whether there was an answer of any kind."""
        seen = Observation(intended_s, time.perf_counter(), num_items)
        try:
            async with asyncio.timeout(self._timeout_s), self._pool.connection() as connection:
                seen.sent_s = time.perf_counter()
                self._record_reply(seen, await connection.exchange(data))
        except TimeoutError:  # an OSError too, so it comes first
            self._record_failure(seen, TIMEOUT, f"no answer within {self._timeout_s:g} s")
        except ExchangeError as error:
            self._record_failure(seen, error.kind, str(error))
        except ConnectionRefusedError as error:
            self._record_failure(seen, "refused", str(error))
        except OSError as error:
            self._record_failure(seen, "connect", str(error))
        except asyncio.CancelledError:  # left out, it would be missing among the slow ones
            self._record_failure(seen, "unfinished", "under way when the load was ended early")
            self._recording.add(seen)
            raise
        self._recording.add(seen)
        return seen.status > 0

    def close(self) -> None:
        """Hang up, and note how it was with connections."""
        self._pool.close()
        self._recording.num_waited = self._pool.num_waited

    def _record_reply(self, seen: Observation, reply: Reply) -> None:
        seen.ended_s = reply.ended_s
        seen.status = reply.status
        seen.num_tokens, seen.token_times_s = reply.num_tokens, reply.token_times_s
        if not 200 <= reply.status < 300:
            self._record_error(seen, f"http_{reply.status}", error_message(reply.body))
        elif reply.error is not None:
            self._record_error(seen, "stream", reply.error)

    def _record_failure(self, seen: Observation, kind: str, message: str) -> None:
        seen.ended_s = time.perf_counter()
        self._record_error(seen, kind, message)

    def _record_error(self, seen: Observation, kind: str, message: str) -> None:
        seen.error = kind
        self._recording.examples.setdefault(kind, message)
