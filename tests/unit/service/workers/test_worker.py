"""A worker's start, fair accepting of connections, and the shared board."""

import asyncio
import os
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn

from models.errors import InputError
from service.settings import Settings
from service.workers import worker as workers_worker
from service.workers.pool import NOT_LISTENING, SharedStatus, WorkerPool
from service.workers.supervisor import Supervisor
from service.workers.worker import FairListener, WorkerServer


@pytest.fixture
def board():
    """Status board with worker 0 ready and listening, worker 1 starting."""
    board = SharedStatus(2)
    board.started[0] = 1
    board.connections[0] = 3
    return board


async def started(board, folder, *, is_loaded=True, is_stopped=False):
    """Start a replacement of worker 1 and return its state."""
    reading, writing = os.pipe()
    crew = WorkerPool(1, 2, "host", board, folder, folder, reading, is_restarted=True)
    config = uvicorn.Config(None, lifespan="off", log_config=None)
    config.load()
    taken = []

    async def take_over(_services, _peers):
        taken.append(board.connections[1])

    async def close(**_time):
        pass

    services = SimpleNamespace(
        engine=SimpleNamespace(is_hung=False, close=close),
        reloader=SimpleNamespace(initial_load_done=is_loaded),
    )
    app = SimpleNamespace(state=SimpleNamespace(services=services, peers={}, endpoints=(), tracing=None))
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers_worker, "sync_with_peers", take_over)
        server = WorkerServer(app, Settings(), crew)
        server.config, server.lifespan = config, config.lifespan_class(config)
        server.should_exit = is_stopped
        await server.startup([listening])
        await asyncio.sleep(0.1)
        told = board.connections[1], all(board.started)
        await server.shutdown()
    os.close(writing)
    os.close(reading)
    return taken, *told


def test_one_that_takes_a_place_takes_over_before_it_listens_and_tells_that_it_is_ready(board, tmp_path):
    """Otherwise a service that lost a worker during the initial load would never become ready."""
    assert asyncio.run(started(board, tmp_path)) == ([NOT_LISTENING], 0, True)


def test_one_that_is_stopped_meanwhile_takes_nothing_over(board, tmp_path):
    outcome = asyncio.run(started(board, tmp_path, is_loaded=False, is_stopped=True))
    assert outcome == ([], NOT_LISTENING, False)


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def listening_crew(number, board):
    nowhere = Path("/nowhere")
    return WorkerPool(
        number=number, size=2, name="host", status=board, folder=nowhere, weights=nowhere, lifeline=-1
    )


class Watched(FairListener):
    """Listener that counts the turns left to other workers."""

    num_left = 0

    def _pause(self, seconds):
        self.num_left += seconds is not None
        super()._pause(seconds)


async def turns_left(listening, board, count):
    """Number of turns that worker 0 leaves to other workers before it accepts `count` connections."""
    accepted, done = [], asyncio.Event()

    def connect(connection, _on_end):
        accepted.append(connection)
        if len(accepted) == count:
            done.set()

    listener = Watched(listening.dup(), listening_crew(0, board), connect)
    clients = [socket.create_connection(listening.getsockname()) for _ in range(count)]
    await asyncio.wait_for(done.wait(), 20)
    listener.close()
    for one in (*clients, *accepted):
        one.close()
    return listener.num_left


def test_a_connection_is_taken_at_once_where_nobody_has_fewer(listening):
    board = SharedStatus(2)
    board.connections[1] = 3
    assert asyncio.run(turns_left(listening, board, 3)) == 0
    assert list(board.connections) == [NOT_LISTENING, 3]


@pytest.mark.parametrize("count", [6, 100])
def test_one_that_takes_nothing_holds_up_no_burst(listening, count):
    board = SharedStatus(2)
    board.connections[1] = 0
    assert 0 < asyncio.run(turns_left(listening, board, count)) < 300


def test_one_that_does_not_listen_is_not_waited_for(listening):
    board = SharedStatus(2)
    board.connections[1] = 0
    board.mark_stopped(1)
    assert asyncio.run(turns_left(listening, board, 6)) == 0


@pytest.mark.parametrize(("waited_s", "lead"), [(0.0, 1), (0.011, 2), (0.021, 4), (0.051, 32)])
def test_the_lead_over_others_grows_while_a_connection_waits(listening, waited_s, lead):
    async def main():
        board = SharedStatus(2)
        board.connections[1] = 7
        listener = FairListener(listening.dup(), listening_crew(0, board), lambda *_: None)
        listener._waiting_since_s = listener._loop.time() - waited_s
        deferred = []
        for change in (7 + lead - 1, 1):
            listener._count(change)
            deferred.append(listener._is_deferred())
        listener.close()
        return deferred

    assert asyncio.run(main()) == [False, True]


def test_connections_that_end_are_counted_off(listening):
    async def main():
        board = SharedStatus(2)
        ends = []
        listener = FairListener(
            listening.dup(), listening_crew(1, board), lambda _, on_end: ends.append(on_end)
        )
        for _ in range(2):
            listener._take(None)
        ends[0]()
        now = list(board.connections)
        listener.close()
        return now, list(board.connections)

    assert asyncio.run(main()) == ([NOT_LISTENING, 1], [NOT_LISTENING] * 2)


def crew(number=1, size=3):
    folder = Path("/run/ours")
    return WorkerPool(
        number=number,
        size=size,
        name="pod",
        status=SharedStatus(size),
        folder=folder,
        weights=folder,
        lifeline=-1,
    )


def test_each_has_a_name_and_a_socket():
    one = crew()
    assert one.process_names == ["pod-0", "pod-1", "pod-2"]
    assert one.socket_of(2) == Path("/run/ours/2.sock")


@pytest.mark.parametrize(("cores", "size", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1)])
def test_cores_are_shared(monkeypatch, cores, size, threads):
    monkeypatch.setattr("service.workers.pool.usable_threads", lambda: cores)
    assert crew(0, size).num_threads == threads


def test_workers_are_pinned_round_and_round(monkeypatch):
    pinned = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 6})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: pinned.append(cores))
    for number in range(3):
        crew(number).pin()
    assert pinned == [{4}, {6}, {4}]


def test_a_board_knows_who_listens_and_who_has_ever_been_ready():
    board = SharedStatus(2)
    assert [list(row) for row in (board.connections, board.started, board.restarts)] == [
        [-1, -1],
        [0, 0],
        [0, 0],
    ]
    board.connections[0] = 7
    board.started[0] = 1
    board.started[1] = 1
    board.connections[1] = 2
    board.mark_stopped(1)
    board.restarts[1] += 1
    assert [list(row) for row in (board.connections, board.started, board.restarts)] == [
        [7, -1],
        [1, 1],
        [0, 1],
    ]


def test_a_board_is_one_for_all_processes():
    board = SharedStatus(1)
    child = os.fork()
    if not child:
        board.connections[0] = 5
        os._exit(0)
    os.waitpid(child, 0)
    assert list(board.connections) == [5]


def test_a_folder_with_too_long_a_path_is_told_of_and_left_clean(monkeypatch, tmp_path):
    folder = tmp_path / (60 * "x") / (60 * "y")
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    one = Supervisor(2, name=None, patience_s=1)
    with socket.socket() as listening, pytest.raises(InputError, match="set TMPDIR to a shorter path"):
        one.run(listening)
    assert not list(folder.iterdir())


def test_a_name_must_leave_room_for_the_number():
    with pytest.raises(InputError, match="has 60 characters; with several workers the maximum is 59"):
        Supervisor(2, name=60 * "x", patience_s=1)
