"""What a worker knows of itself and the others."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from models.errors import InvalidInputError
from service.workers.pool import SharedStatus, WorkerPool
from service.workers.supervisor import Supervisor


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


def test_each_has_a_name_a_socket_and_others():
    one = crew()
    assert one.process_name == "pod-1"
    assert one.process_names == ["pod-0", "pod-1", "pod-2"]
    assert one.socket_of(2) == Path("/run/ours/2.sock")
    assert one.peer_numbers == [0, 2]


@pytest.mark.parametrize(("cores", "size", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1)])
def test_cores_are_shared(monkeypatch, cores, size, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
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
    assert (board.connections, board.all_started, board.restarts) == ([None, None], False, [0, 0])
    board.set_connections(0, 7)
    board.mark_started(0)
    board.mark_started(1)
    board.set_connections(1, 2)
    board.mark_stopped(1)
    board.mark_restarted(1)
    assert (board.connections, board.all_started, board.restarts) == ([7, None], True, [0, 1])


def test_a_board_is_one_for_all_processes():
    board = SharedStatus(1)
    child = os.fork()
    if not child:
        board.set_connections(0, 5)
        os._exit(0)
    os.waitpid(child, 0)
    assert board.connections == [5]


def test_a_folder_with_too_long_a_path_is_told_of_and_left_clean(monkeypatch, tmp_path):
    folder = tmp_path / (60 * "x") / (60 * "y")
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    one = Supervisor(2, name=None, patience_s=1)
    with socket.socket() as listening, pytest.raises(InvalidInputError, match="set TMPDIR to a shorter one"):
        one.run(listening)
    assert not list(folder.iterdir())


def test_a_name_must_leave_room_for_the_number():
    with pytest.raises(InvalidInputError, match="has 60 characters; with several workers 59 are the most"):
        Supervisor(2, name=60 * "x", patience_s=1)
