"""The thread on which models are loaded, one at a time, and the watch over the registry."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import structlog

from service.engine.host import ModelHost
from service.engine.hosted import HostedModel
from service.engine.memory import freeze_garbage_collector

R = TypeVar("R")
_log = structlog.get_logger(__name__)
_REAP_S = 0.1


class ModelReloader:
    """Has the host's changes made on one thread of its own: never the event loop's, never the model's.

    Args:
        host: what it keeps.
        interval_s: how often it looks at the registry; 0 is never.
        peers_started: whether the same can be said of all other processes that serve on the same port.
    """

    def __init__(
        self, host: ModelHost, *, interval_s: float, peers_started: Callable[[], bool] = lambda: True
    ) -> None:
        self._host = host
        self._others_started = peers_started
        self._interval_s = interval_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaping = False
        self._closing = False
        self.queued: tuple[str, ...] = ()
        """Addresses that are to be loaded and were not yet begun with, or are being loaded."""
        self.initial_load_done = False
        """Whether every model that was named at start has been loaded here, or has failed to."""

    @property
    def started(self) -> bool:
        """Whether that is so in every process that serves on the same port."""
        return self.initial_load_done and self._others_started()

    def start(self) -> None:
        """Load all models, then watch."""
        self._spawn(self._watch())

    async def close(self, *, timeout_s: float) -> None:
        """Stop watching; a load under way is waited for, no longer than this."""
        self._host.stop()
        self._closing = True
        for task in self._tasks:
            task.cancel()
        ended = asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        await asyncio.wait([asyncio.create_task(ended)], timeout=timeout_s)

    def load(self, address: str) -> asyncio.Future[HostedModel]:
        """Serve an address from now on.

        Returns:
            What it means, loaded or failed, to come; or the errors of `ModelHost.load`. Nobody need wait.
        """
        self.queued = (*self.queued, address)
        future = self._submit(partial(self._host.load, address))

        def forget(ended: asyncio.Future[HostedModel]) -> None:
            left = list(self.queued)
            left.remove(address)
            self.queued = tuple(left)
            if not ended.cancelled():
                ended.exception()  # seen: whoever did not wait did not want to know

        future.add_done_callback(forget)
        return future

    def unload(self, address: str) -> asyncio.Future[HostedModel]:
        """Serve a model no longer; see `ModelHost.unload`."""
        return self._submit(partial(self._host.unload, address))

    def refresh(self) -> asyncio.Future[None]:
        """Look at the registry now; see `ModelHost.refresh`."""
        return self._submit(self._host.refresh)

    def _submit(self, change: Callable[[], R]) -> asyncio.Future[R]:
        future = asyncio.wrap_future(self._thread.submit(change))
        future.add_done_callback(lambda _: self._reap())
        return future

    async def _watch(self) -> None:
        await self._log_failure(self._submit(self._load_all))
        while self._interval_s > 0:
            await asyncio.sleep(self._interval_s)
            await self._log_failure(self.refresh())

    async def _log_failure(self, change: asyncio.Future[None]) -> None:
        """Wait for a change; a fault of ours in one is told, and the next may go well."""
        await asyncio.wait([change])
        error = change.exception()
        if error is not None:
            _log.error("the models could not be kept", exc_info=error)

    def _load_all(self) -> None:
        self._host.load_all()
        freeze_garbage_collector()
        self.initial_load_done = True

    def _reap(self) -> None:
        if self._host.needs_reaping and not self._reaping and not self._closing:
            self._spawn(self._reap_all())

    async def _reap_all(self) -> None:
        self._reaping = True
        try:
            while await asyncio.wrap_future(self._thread.submit(self._host.reap)):  # noqa: ASYNC110 - nobody tells when memory is freed
                await asyncio.sleep(_REAP_S)
        finally:
            self._reaping = False

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
