"""Worker process: server, fair acceptance of connections, synchronisation with peers.

Clients keep connections open, so a worker that accepts a burst of them keeps their load. When the
kernel chose between two workers, one sometimes accepted all of eight connections. With one socket
per worker (`SO_REUSEPORT`) it was six of eight, and a dead worker's queue is lost. All workers
therefore share one socket, and a worker with more connections than another leaves it some
milliseconds to accept the next.

A restarted worker loads the models that its peers serve before it accepts connections.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType

import structlog
from fastapi import FastAPI

from models.errors import DomainError
from service.http_client import ExchangeError
from service.http_server import DrainingServer, SocketListener
from service.routes.request import Services
from service.settings import Settings
from service.workers.peers import SERVED_PATH, Peer, served_addresses
from service.workers.pool import HEARTBEAT_INTERVAL_S, WorkerPool

_POLL_S = 0.05
_DEFER_S = 0.001
_PATIENCE_S = 0.01
"""Waiting time for a worker with fewer connections; after each, twice as many may be accepted before it."""

_log = structlog.get_logger(__name__)


async def sync_with_peers(services: Services, peers: Mapping[int, Peer]) -> None:
    """Apply the loads and unloads requested from the first peer that replies."""
    for peer in peers.values():
        try:
            peer_models = json.loads((await peer.get(SERVED_PATH)).body)
        except ExchangeError:
            continue  # this peer is restarting or hangs
        served = served_addresses(services)
        load, unload = services.reloader.load, services.reloader.unload
        changes = [(load, address) for address in peer_models["served"] if address not in served]
        # what only this worker serves may be new in the registry: unload only listed ones
        changes += [(unload, address) for address in peer_models["unloaded"] if address in served]
        for change, address in changes:
            try:
                await change(address)
            except DomainError as error:
                _log.warning("could not apply a peer's model change", model=address, reason=str(error))
        return


class FairListener(SocketListener):
    """Listener that defers to workers with fewer connections; for the event loop.

    The allowed lead over them grows while connections wait, so neither a burst nor a hung worker holds up
    new ones.

    Args:
        listening: socket shared by all workers.
        pool: worker pool, with the connections of each worker.
        connect: serves an accepted socket, and calls a function at its end.
    """

    def __init__(
        self,
        listening: socket.socket,
        pool: WorkerPool,
        connect: Callable[[socket.socket, Callable[[], None]], None],
    ) -> None:
        super().__init__(listening, self._take)
        self._serve = connect
        self._number = pool.number
        self._status = pool.status
        self._waiting_since_s: float | None = None
        self._status.connections[self._number] = 0

    def close(self) -> None:
        """Stop accepting connections."""
        if not self._is_closed:
            self._status.mark_stopped(self._number)
        super().close()

    def _accept(self) -> bool:
        """Accept a connection, unless another worker should accept it."""
        if self._is_deferred():
            self._pause(_DEFER_S)
            return False
        if super()._accept():
            return True
        self._waiting_since_s = None  # no connection waits
        return False

    def _is_deferred(self) -> bool:
        """Return whether a worker with fewer connections should accept it."""
        fewest = min((count for count in self._status.connections if count >= 0), default=0)
        lead = self._status.connections[self._number] - fewest
        if lead <= 0:
            return False
        now_s = self._loop.time()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        return lead >= 1 << int((now_s - self._waiting_since_s) / _PATIENCE_S)

    def _take(self, accepted: socket.socket) -> None:
        self._count(1)
        self._serve(accepted, partial(self._count, -1))

    def _count(self, change: int) -> None:
        if not self._is_closed:
            self._status.connections[self._number] += change


class WorkerServer(DrainingServer):
    """Server of a worker: a socket for peers, and a fair share of connections to the shared one.

    A restarted worker uses the shared socket once its models are loaded; till then its peers serve.
    """

    def __init__(self, app: FastAPI, settings: Settings, pool: WorkerPool) -> None:
        super().__init__(app, settings)
        self._services: Services = app.state.services
        self._peers: Mapping[int, Peer] = app.state.peers
        self._pool = pool

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop on SIGTERM from the supervisor.

        SIGINT (Ctrl-C) is ignored, as the supervisor then sends SIGTERM, and so is a second SIGTERM: a signal to
        the process group reaches workers twice. The supervisor sends SIGKILL to end workers immediately.
        """
        if sig != signal.SIGINT and not self.should_exit:
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen on the socket shared by all workers."""
        await super().startup()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pool.lifeline, self._on_supervisor_death)
        peer_socket = self._pool.socket_of(self._pool.number)
        peer_socket.unlink(missing_ok=True)  # left by the dead worker
        path, backlog = str(peer_socket), self.config.backlog
        self.servers.append(await loop.create_unix_server(self._protocol, path=path, backlog=backlog))
        self._spawn(self._send_heartbeats())
        if self._pool.is_restarted and any(count >= 0 for count in self._pool.status.connections):
            await self._wait_until_loaded()
            if not self.should_exit:
                async with self._pool.lock_changes():
                    await sync_with_peers(self._services, self._peers)
        self._spawn(self._report_when_loaded())
        if not self.should_exit:
            _log.info("worker accepts connections")
            for listening in sockets or ():
                listener = FairListener(listening, self._pool, self._connect)
                self.servers.append(listener)  # type: ignore[arg-type]  # has the methods that uvicorn calls

    async def _send_heartbeats(self) -> None:
        """Send heartbeats while this worker makes progress; without any it is killed."""
        while True:
            if not self._services.engine.is_hung:
                self._pool.status.heartbeats[self._pool.number] += 1
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    async def _wait_until_loaded(self) -> None:
        """Wait until this worker has loaded its models or must stop."""
        while not (self._services.reloader.initial_load_done or self.should_exit):  # noqa: ASYNC110 - set by threads
            await asyncio.sleep(_POLL_S)

    async def _report_when_loaded(self) -> None:
        await self._wait_until_loaded()
        if self._services.reloader.initial_load_done:
            self._pool.status.started[self._pool.number] = 1

    def _on_supervisor_death(self) -> None:
        """Stop this worker after the supervisor's death, and remove its folders."""
        asyncio.get_running_loop().remove_reader(self._pool.lifeline)
        _log.error("the supervisor has died; this worker stops")
        for folder in (self._pool.folder, self._pool.weights):
            shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGTERM)
