"""What a process knows of the others of its run."""

import json
import threading
import time

import pytest

from models.errors import ProcessLostError
from training.neural.distributed import PeerMonitor


class Store:
    """Like torch's, in one process."""

    def __init__(self):
        self.values = {}
        self.failure = None

    def set(self, key, value):
        self._fail_if_gone()
        self.values[key] = value.encode()

    def multi_get(self, keys):
        while not all(key in self.values for key in keys):
            self._fail_if_gone()  # torch's breaks off, too
            time.sleep(0.001)
        return [self.values[key] for key in keys]

    def _fail_if_gone(self):
        if self.failure:
            raise RuntimeError(self.failure)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr("training.neural.distributed._HEARTBEAT_S", 0.01)
    monkeypatch.setattr("training.neural.distributed._SILENCE_S", 0.2)


@pytest.fixture
def company():
    """Makes processes of one run of three, which leave at the end."""
    store, made = Store(), []

    def make(rank, *, patience_s=60.0):
        made.append(PeerMonitor(store, rank, 3, patience_s=patience_s))
        return made[-1]

    make.store = store
    yield make
    for process in made:
        process.leave("")


def dead(store, rank):
    """A process that spoke once."""
    store.set(
        f"gramophone/process/{rank}",
        json.dumps({"machine": "far", "beats": 1, "meetings": 0, "farewell": None}),
    )


def test_who_comes_first_waits_for_the_last(company):
    first, second, last = (company(rank) for rank in range(3))
    came = []
    waiting = [threading.Thread(target=lambda p=p: (p.barrier(), came.append(p))) for p in (first, second)]
    for thread in waiting:
        thread.start()
    time.sleep(0.05)
    assert came == []
    last.barrier()
    for thread in waiting:
        thread.join(timeout=10)
    assert len(came) == 2


def test_they_meet_again_and_again(company):
    processes = [company(rank) for rank in range(3)]
    threads = [threading.Thread(target=lambda p=p: [p.barrier() for _ in range(20)]) for p in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)


def test_one_that_is_busy_is_waited_for_beyond_patience(company):
    """It beats, so it lives."""
    first, second, busy = (company(rank, patience_s=0.3) for rank in range(3))
    threading.Thread(target=second.barrier).start()
    threading.Timer(0.6, busy.barrier).start()
    first.barrier()


def test_silence_is_taken_for_death_after_patience(company):
    first, _ = company(0, patience_s=0.3), company(1)
    dead(company.store, 2)
    began = time.monotonic()
    with pytest.raises(ProcessLostError, match="process 2 on far is gone: nothing was heard of it for"):
        first.barrier()
    assert time.monotonic() - began >= 0.3


def test_what_ended_a_process_is_told_to_those_who_wait(company):
    first, _, third = (company(rank) for rank in range(3))
    third.leave("corpus.txt: there is no such file")
    with pytest.raises(
        ProcessLostError, match=r"process 2 on .* ended: corpus\.txt: there is no such file; start"
    ):
        first.barrier()


def test_a_failed_exchange_names_the_silent_process_not_those_that_noticed_it_too(company):
    first, second = company(0), company(1)
    dead(company.store, 2)
    second.leave("")
    assert "process 2 on far is gone" in str(first.lost_peer_error("Connection closed by peer"))


def test_a_failed_exchange_among_the_living_says_what_failed(company):
    first, *_ = (company(rank) for rank in range(3))
    assert "failed: Timed out" in str(first.lost_peer_error("Timed out"))


def test_the_end_of_torchrun_is_told(company):
    first, *_ = (company(rank) for rank in range(3))
    company.store.failure = "Broken pipe"
    with pytest.raises(ProcessLostError, match="torchrun on the machine of process 0 is gone: Broken pipe"):
        first.barrier()
