"""The HTTP server of one of several workers: two sockets, and an end when the supervisor ends."""

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI

from service.routes.serving import Services
from service.server import DrainingServer, make_drain, server_config
from service.settings import Settings
from service.workers.board import HEARTBEAT_INTERVAL_S
from service.workers.crew import WorkerPool
from service.workers.joining import sync_with_peers, wait_until
from service.workers.listening import FairListener
from service.workers.one_by_one import CrossProcessLock

_log = structlog.get_logger(__name__)


class WorkerServer(DrainingServer):
    """Listens for the other workers, and, in fair shares, on the socket that all have.

    One that takes the place of a dead worker listens there once its models are loaded: until then the others answer.

    Args:
        config: as uvicorn's.
        on_signal: called when it is to stop.
        drain: ends the work under way.
        crew: the workers.
        listening: the socket that all share.
        is_loaded: whether all models are loaded that are to be.
        hangs: whether what this worker does has not moved for too long.
        sync_with_peers: makes what is served here what the others serve.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_signal: Callable[[], None],
        drain: Callable[[], Awaitable[None]],
        crew: WorkerPool,
        listening: socket.socket,
        is_loaded: Callable[[], bool],
        hangs: Callable[[], bool],
        sync_with_peers: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(config, on_signal=on_signal, drain=drain)
        self._pool = crew
        self._changes = CrossProcessLock(crew)
        self._listening = listening
        self._is_loaded = is_loaded
        self._hangs = hangs
        self._sync_with_peers = sync_with_peers

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop when the supervisor says so; Ctrl-C is for it, and it says so.

        A second SIGTERM is the first once more: whoever signals all processes of a group reaches workers twice. The
        supervisor has another for those who are to end at once.
        """
        if sig != signal.SIGINT and not self.should_exit:
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - uvicorn's
        """Start the application, then listen."""
        await super().startup(sockets=[])
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pool.lifeline, self._orphaned)
        own = self._pool.socket_of(self._pool.number)
        own.unlink(missing_ok=True)  # of the worker whose place this one takes
        backlog = self.config.backlog
        self.servers.append(await loop.create_unix_server(self._protocol, path=str(own), backlog=backlog))
        self._spawn(self._send_heartbeats())
        if self._pool.is_restarted and any(count is not None for count in self._pool.status.connections):
            await wait_until(lambda: self._is_loaded() or self.should_exit)
            if not self.should_exit:
                async with self._changes.hold():
                    await self._sync_with_peers()
        self._spawn(self._report_when_loaded())
        if not self.should_exit:
            self._listen()

    def _listen(self) -> None:
        kind = self.config.http_protocol_class
        listener: FairListener

        def lost(connection: Any, exc: Exception | None) -> None:
            listener.connection_ended()
            kind.connection_lost(connection, exc)

        counted = type("Counted", (kind,), {"connection_lost": lost})

        listener = FairListener(self._listening, self._pool, partial(self._connect, counted))
        _log.info("worker takes connections")
        self.servers.append(listener)  # type: ignore[arg-type]  # it can be closed, and waited for

    async def _send_heartbeats(self) -> None:
        """Say now and then that this worker is alive, for as long as it is; the supervisor kills one that is silent."""
        while True:
            if not self._hangs():
                self._pool.status.heartbeat(self._pool.number)
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    async def _report_when_loaded(self) -> None:
        await wait_until(self._is_loaded)
        self._pool.status.mark_started(self._pool.number)

    def _orphaned(self) -> None:
        """The supervisor has died, so that nobody would start, stop or tidy up anything any more."""
        asyncio.get_running_loop().remove_reader(self._pool.lifeline)
        _log.error("the supervisor has died; this worker ends")
        for folder in (self._pool.folder, self._pool.weights):
            shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGTERM)


def make_worker_server(
    app: FastAPI, settings: Settings, crew: WorkerPool, listening: socket.socket
) -> WorkerServer:
    """A server for a worker's application, with the settings' limits."""
    services: Services = app.state.services
    return WorkerServer(
        server_config(app, settings),
        on_signal=services.engine.scheduler.drain,
        drain=make_drain(app, settings),
        crew=crew,
        listening=listening,
        is_loaded=lambda: services.reloader.initial_load_done,
        hangs=lambda: services.engine.is_hung,
        sync_with_peers=lambda: sync_with_peers(services, app.state.peers),
    )
