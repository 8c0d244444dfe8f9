"""How a worker starts: what it waits for, and what it tells the others."""

import asyncio
import os
import socket

import pytest
import uvicorn

from service.workers.pool import SharedStatus, WorkerPool
from service.workers.worker import WorkerServer


@pytest.fixture
def board():
    """Worker 0 is ready and listens; 1 is about to."""
    board = SharedStatus(2)
    board.mark_started(0)
    board.set_connections(0, 3)
    return board


async def started(board, folder, *, is_loaded=lambda: True, is_stopped=False):
    """What a worker that takes the place of number 1 has taken over when it has started."""
    reading, writing = os.pipe()
    crew = WorkerPool(1, 2, "host", board, folder, folder, reading, is_restarted=True)
    config = uvicorn.Config(None, lifespan="off", log_config=None)
    config.load()
    taken = []

    async def take_over():
        taken.append(board.connections[1])

    async def drain():
        pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = WorkerServer(
            config,
            on_signal=lambda: None,
            drain=drain,
            crew=crew,
            listening=listening,
            is_loaded=is_loaded,
            hangs=lambda: False,
            sync_with_peers=take_over,
        )
        server.lifespan = config.lifespan_class(config)
        server.should_exit = is_stopped
        await server.startup()
        await asyncio.sleep(0.1)
        told = board.connections[1], board.all_started
        await server.shutdown()
    os.close(writing)
    os.close(reading)
    return taken, *told


def test_one_that_takes_a_place_takes_over_before_it_listens_and_tells_that_it_is_ready(board, tmp_path):
    """Else a service of which one worker died while it loaded the first models would never be ready."""
    assert asyncio.run(started(board, tmp_path)) == ([None], 0, True)


def test_one_that_is_stopped_meanwhile_takes_nothing_over(board, tmp_path):
    outcome = asyncio.run(started(board, tmp_path, is_loaded=lambda: False, is_stopped=True))
    assert outcome == ([], None, False)
