"""Who takes a connection that waits for several workers."""

import asyncio
import socket
from pathlib import Path

import pytest

from service.workers.board import Board
from service.workers.crew import Crew
from service.workers.listening import FairListener


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def crew(number, board):
    nowhere = Path("/nowhere")
    return Crew(number=number, size=2, name="host", board=board, folder=nowhere, weights=nowhere, lifeline=-1)


async def taken_s(listening, board, count=1):
    """When worker 0 took each of so many connections, counted from the first."""
    loop, times, accepted = asyncio.get_running_loop(), [], []

    def connect(connection):
        times.append(loop.time())
        accepted.append(connection)

    listener = FairListener(listening.dup(), crew(0, board), connect)
    started_s = loop.time()
    clients = [socket.create_connection(listening.getsockname()) for _ in range(count)]
    while len(times) < count and loop.time() < started_s + 5:  # noqa: ASYNC110 - the listener tells nobody
        await asyncio.sleep(0.001)
    listener.close()
    for one in (*clients, *accepted):
        one.close()
    return [time_s - started_s for time_s in times]


def test_a_connection_is_taken_at_once_where_nobody_has_fewer(listening):
    board = Board(2)
    board.connected(1, 3)
    assert len(asyncio.run(taken_s(listening, board, 3))) == 3
    assert board.connections == [None, 3]


def test_one_that_has_more_waits_for_the_other_but_not_for_ever(listening):
    board = Board(2)
    board.connected(1, 0)
    first, second, third = asyncio.run(taken_s(listening, board, 3))
    assert second - first > 0.04  # nobody took it
    assert third - second < second - first  # who takes nothing is not waited for again


def test_a_worker_that_does_not_listen_is_not_waited_for(listening):
    board = Board(2)
    board.connected(1, 0)
    board.stopped(1)
    first, second = asyncio.run(taken_s(listening, board, 2))
    assert second - first < 0.04


def test_connections_that_end_are_counted_off(listening):
    async def main():
        board = Board(2)
        listener = FairListener(listening.dup(), crew(1, board), lambda _: None)
        listener._connections = 2
        listener.ended()
        now = board.connections
        listener.close()
        return now, board.connections

    assert asyncio.run(main()) == ([None, 1], [None, None])
