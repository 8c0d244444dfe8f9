"""Who takes a connection that waits for several workers."""

import asyncio
import socket
from pathlib import Path

import pytest

from service.workers.pool import SharedStatus, WorkerPool
from service.workers.worker import _MAX_DEFERRALS, FairListener


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def crew(number, board):
    nowhere = Path("/nowhere")
    return WorkerPool(
        number=number, size=2, name="host", status=board, folder=nowhere, weights=nowhere, lifeline=-1
    )


class Watched(FairListener):
    """Counts the turns that it leaves to others."""

    num_left = 0

    def _pause(self, seconds):
        self.num_left += seconds is not None
        super()._pause(seconds)


async def turns_left(listening, board, count):
    """How many turns worker 0 leaves to others before it has taken so many connections."""
    accepted, done = [], asyncio.Event()

    def connect(connection):
        accepted.append(connection)
        if len(accepted) == count:
            done.set()

    listener = Watched(listening.dup(), crew(0, board), connect)
    clients = [socket.create_connection(listening.getsockname()) for _ in range(count)]
    await asyncio.wait_for(done.wait(), 20)
    listener.close()
    for one in (*clients, *accepted):
        one.close()
    return listener.num_left


def test_a_connection_is_taken_at_once_where_nobody_has_fewer(listening):
    board = SharedStatus(2)
    board.set_connections(1, 3)
    assert asyncio.run(turns_left(listening, board, 3)) == 0
    assert board.connections == [None, 3]


def test_one_that_takes_nothing_is_waited_for_once(listening):
    board = SharedStatus(2)
    board.set_connections(1, 0)
    assert asyncio.run(turns_left(listening, board, 6)) == _MAX_DEFERRALS


def test_one_that_does_not_listen_is_not_waited_for(listening):
    board = SharedStatus(2)
    board.set_connections(1, 0)
    board.mark_stopped(1)
    assert asyncio.run(turns_left(listening, board, 6)) == 0


def test_it_is_waited_for_again_once_it_has_taken_something(listening):
    async def main():
        board = SharedStatus(2)
        board.set_connections(1, 0)
        listener = FairListener(listening.dup(), crew(0, board), lambda _: None)
        listener._connections, listener._unresponsive = 2, {1: 0}
        listener._publish_count()
        before = listener._is_deferred()
        board.set_connections(1, 1)
        after = listener._is_deferred()
        listener.close()
        return before, after

    assert asyncio.run(main()) == (False, True)


def test_connections_that_end_are_counted_off(listening):
    async def main():
        board = SharedStatus(2)
        listener = FairListener(listening.dup(), crew(1, board), lambda _: None)
        listener._connections = 2
        listener.connection_ended()
        now = board.connections
        listener.close()
        return now, board.connections

    assert asyncio.run(main()) == ([None, 1], [None, None])
