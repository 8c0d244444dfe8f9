"""Who is taken to hang."""

import pytest

from service.workers.pool import HEARTBEAT_INTERVAL_S, SharedStatus
from service.workers.supervisor import Watchdog


@pytest.fixture
def clock():
    """Seconds that a test sets."""
    return [0.0]


@pytest.fixture
def silence(clock):
    board = SharedStatus(2)
    return board, Watchdog(board, 2, patience_s=5.0, clock=lambda: clock[0])


def looks(silence, clock, count, beating=()):
    """What so many looks find, the workers named saying that they are alive before each."""
    board, silent = silence
    found = []
    for _ in range(count):
        for worker in beating:
            board.heartbeat(worker)
        clock[0] = silent.due_s
        found += silent.hung_workers()
    return found


def test_one_that_says_nothing_for_five_looks_hangs(silence, clock):
    assert looks(silence, clock, 1, beating=[0, 1]) == []
    assert looks(silence, clock, 4, beating=[0]) == []
    assert looks(silence, clock, 1, beating=[0]) == [1]
    assert looks(silence, clock, 5, beating=[0]) == []  # told once


def test_one_that_has_not_begun_is_being_started(silence, clock):
    assert looks(silence, clock, 20, beating=[0]) == []


def test_one_that_took_the_place_of_another_is_listened_to_anew(silence, clock):
    looks(silence, clock, 4, beating=[])
    silence[0].mark_stopped(1)
    assert looks(silence, clock, 10) == []


def test_a_look_that_comes_late_counts_as_one(silence, clock):
    """The whole machine was held up, and nobody could say anything."""
    looks(silence, clock, 1, beating=[0, 1])
    clock[0] += 1000
    assert silence[1].hung_workers() == []
    assert looks(silence, clock, 10, beating=[0, 1]) == []


def test_nobody_is_to_speak_more_often_than_workers_do():
    silent = Watchdog(SharedStatus(2), 2, patience_s=0.01, clock=lambda: 0.0)
    assert silent.due_s == HEARTBEAT_INTERVAL_S


def test_without_a_limit_nobody_is_looked_at():
    silent = Watchdog(SharedStatus(2), 2, patience_s=0, clock=lambda: 0.0)
    assert (silent.due_s, silent.hung_workers()) == (None, [])
