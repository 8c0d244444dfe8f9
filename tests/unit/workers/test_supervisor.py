"""What the supervisor does where the system refuses."""

import errno
import os

import pytest

from service.workers.supervisor import SignalQueue, Supervisor


@pytest.fixture
def supervisor():
    one = Supervisor(2, name="host", patience_s=1)
    one._signals = SignalQueue(())
    yield one
    one._signals.close()


def test_a_worker_that_cannot_be_forked_is_tried_again_later(supervisor, monkeypatch):
    """The memory that a worker died for may still be missing; that is no reason for the others to end."""

    def refuse():
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", refuse)
    place = supervisor._slots[1]
    place.due_s = 0.0
    assert supervisor._start_due() is None
    assert (place.pid, place.delay_s) == (None, 0.5)
    assert 0 < supervisor._next_s() <= 0.5
    assert supervisor._status.restarts == [0, 0]
