"""Distributed training: batch shares, heartbeats, signals, consistency of processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from models.errors import InputError, ProcessLostError
from models.neural.cells import Dropout
from training.neural.distributed import PeerMonitor, Processes, _Peer, check_agreement, check_same_command
from training.neural.resume import Saver
from training.progress import EXIT_TERMINATED, Terminated, catch_interruption, exit_on_sigterm
from training.recipe import load_recipe


def test_a_batch_that_cannot_be_divided_is_refused():
    with pytest.raises(
        InputError, match="batch_size is 9 for this text; it must be a multiple of the 2 processes"
    ) as caught:
        Processes(1, 2).rows(9)
    assert caught.value.param == "train.batch_size"
    assert Processes(1, 3).rows(9) == slice(3, 6)


@pytest.mark.parametrize("variational", [True, False])
def test_divided_masks_are_those_of_the_whole_batch(variational):
    values = torch.ones(5, 6, 7)

    def drop(number, count):
        dropout = Dropout(0.5, variational=variational).train()
        Processes(number, count).divide_dropout(dropout)
        torch.manual_seed(4)
        return dropout(values[:, Processes(number, count).rows(6)])

    assert torch.equal(torch.cat([drop(n, 3) for n in range(3)], dim=1), drop(0, 1))


def test_machines_started_in_another_order_do_not_begin_anew(tmp_path):
    """The second process has the state that the first one needs to resume."""

    class Told(Processes):
        def broadcast_bytes(self, content):
            return content

        def gather_texts(self, text):
            return [text, "/far/state.pt"]

    saver = Saver(SimpleNamespace(processes=Told(0, 2)), tmp_path / "state.pt")
    with pytest.raises(
        InputError, match=r"process 1 has one, /far/state\.pt; start its machine with --node-rank 0"
    ):
        saver.resume()


_WITHOUT_INSTALLATION = """
import importlib, importlib.metadata as metadata, pkgutil, sys

found = metadata.MetadataPathFinder.find_distributions
metadata.MetadataPathFinder.find_distributions = lambda context=metadata.DistributionFinder.Context(): (
    one for one in found(context) if one.name != "gramophone-lm"
)
try:
    metadata.version("gramophone-lm")
except metadata.PackageNotFoundError:
    import models, training

    for package in (models, training):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name != "pyspark":  # a cluster's, which the tests do not need
                    raise
    from training.neural import distributed, resume

    print(distributed.OWN_VERSION, resume._VERSION)
"""


def test_models_are_trained_from_source_that_is_not_installed():
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_INSTALLATION], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == f"unknown unknown, torch {torch.__version__}\n"


class Store:
    """In-process stand-in for torch's store."""

    def __init__(self):
        self.values = {}
        self.failure = None

    def set(self, key, value):
        self._fail_if_gone()
        self.values[key] = value.encode()

    def multi_get(self, keys):
        while not all(key in self.values for key in keys):
            self._fail_if_gone()  # torch's store also aborts
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
    """Factory of monitors in a run of three processes, which leave at the end."""
    store, made = Store(), []

    def make(rank, *, patience_s=60.0):
        made.append(PeerMonitor(store, rank, 3, patience_s=patience_s))
        return made[-1]

    make.store = store
    yield make
    for process in made:
        process.leave("")


def dead(store, rank):
    """Store the only heartbeat of a dead process."""
    store.set(
        f"gramophone/process/{rank}",
        json.dumps({"machine": "far", "beats": 1, "meetings": 0, "farewell": None}),
    )


def test_barrier_waits_for_the_last_process(company):
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
    """Its heartbeats continue."""
    first, second, busy = (company(rank, patience_s=0.3) for rank in range(3))
    threading.Thread(target=second.barrier).start()
    threading.Timer(0.6, busy.barrier).start()
    first.barrier()


def test_silence_is_taken_for_death_after_patience(company):
    first, _ = company(0, patience_s=0.3), company(1)
    dead(company.store, 2)
    began = time.monotonic()
    with pytest.raises(ProcessLostError, match="process 2 on far was lost: no heartbeat for"):
        first.barrier()
    assert time.monotonic() - began >= 0.3


def test_reason_of_a_lost_process_is_raised_by_waiting_ones(company):
    first, _, third = (company(rank) for rank in range(3))
    third.leave("corpus.txt: there is no such file")
    with pytest.raises(
        ProcessLostError, match=r"process 2 on .* ended: corpus\.txt: there is no such file; restart"
    ):
        first.barrier()


def test_a_failed_exchange_names_the_silent_process_not_those_that_noticed_it_too(company):
    first, second = company(0), company(1)
    dead(company.store, 2)
    second.leave("")
    assert "process 2 on far was lost" in str(first.lost_peer_error("Connection closed by peer"))


def test_a_failed_exchange_among_the_living_says_what_failed(company):
    first, *_ = (company(rank) for rank in range(3))
    assert "failed: Timed out" in str(first.lost_peer_error("Timed out"))


def test_the_end_of_torchrun_is_told(company):
    first, *_ = (company(rank) for rank in range(3))
    company.store.failure = "Broken pipe"
    with pytest.raises(ProcessLostError, match="torchrun on the machine of process 0 was lost: Broken pipe"):
        first.barrier()


@pytest.fixture(autouse=True)
def handlers_are_left_as_they_were():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert after == before


def send(number):
    os.kill(os.getpid(), number)


def test_sigterm_ends_a_command_with_143():
    with pytest.raises(Terminated) as caught, exit_on_sigterm():
        send(signal.SIGTERM)
    assert caught.value.code == EXIT_TERMINATED == 143


def test_a_second_sigterm_would_end_the_process_at_once():
    """Also during the clean-up after the first."""
    with exit_on_sigterm():
        with pytest.raises(Terminated):
            send(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_swallowed_by_a_library_is_raised():
    """DuckDB swallows the handler's exception and reports an interrupted query."""

    def query():
        with contextlib.suppress(Terminated):
            send(signal.SIGTERM)
        raise RuntimeError("Query interrupted")

    with pytest.raises(Terminated), exit_on_sigterm():
        query()


def test_other_errors_stay_what_they_are():
    with pytest.raises(ZeroDivisionError), exit_on_sigterm():
        1 / 0  # noqa: B018


def test_a_training_takes_note_of_sigterm_once():
    with exit_on_sigterm():
        with catch_interruption() as asked:
            send(signal.SIGTERM)
            assert (asked.terminated, asked.requested) == (True, False)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_after_a_training_in_peace_sigterm_ends_the_command():
    with exit_on_sigterm():
        with catch_interruption():
            pass
        with pytest.raises(Terminated):
            send(signal.SIGTERM)


def test_a_second_ctrl_c_interrupts_a_training():
    with catch_interruption() as asked:
        send(signal.SIGINT)
        assert (asked.terminated, asked.requested) == (False, True)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_without_a_command_sigterm_is_nobodys_business():
    with catch_interruption():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_handler_stays():
    def other(number, frame):
        raise AssertionError

    signal.signal(signal.SIGTERM, other)
    try:
        with exit_on_sigterm(), catch_interruption():
            assert signal.getsignal(signal.SIGTERM) is other
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_other_threads_take_note_of_nothing():
    taken = []

    def work():
        with exit_on_sigterm(), catch_interruption():
            taken.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert taken == [signal.SIG_DFL]


def told(machine, **facts):
    return {"machine": machine, "facts": facts}


def test_equal_facts_pass():
    check_agreement([told("a", seed=1), told("b", seed=1)])


def test_the_first_other_process_is_named_with_both_values():
    with pytest.raises(InputError, match=r"process 2 on c .* process 0 on a: seed is 3, but 1 in"):
        check_agreement([told("a", seed=1), told("b", seed=1), told("c", seed=3)])


def test_a_fact_that_one_process_lacks_is_a_difference():
    with pytest.raises(InputError, match="ngram: seed is None, but 1 in process 0"):
        check_agreement([{"machine": "a", "facts": {"ngram: seed": 1}}, told("b")])


def test_no_more_is_listed_than_can_be_read():
    many, others = ({f"key{i}": value for i in range(9)} for value in (1, 2))
    with pytest.raises(InputError, match=r"key2 is 2, but 1 in process 0; and 6 more; give all"):
        check_agreement([told("a", **many), told("b", **others)])


class _Told:
    """Two processes whose second one returns a changed text."""

    def __init__(self, monkeypatch, change):
        monkeypatch.setattr("training.neural.distributed.Processes.current", lambda: self)
        self._change = change

    def gather_texts(self, text):
        return [text, self._change(text)]


def facts_of(recipe, **more):
    return check_same_command(recipe, {}, **({"device": "cpu", "resume": False} | more))


def test_a_changed_key_of_the_recipe_is_named(monkeypatch):
    _Told(monkeypatch, lambda text: text.replace('"train.batch_size": 64', '"train.batch_size": 32'))
    with pytest.raises(InputError, match=r"train\.batch_size is 32, but 64 in process 0"):
        facts_of(load_recipe("lstm", ["train.batch_size=64"]))


def test_resume_on_one_machine_only_is_refused(monkeypatch):
    _Told(monkeypatch, lambda text: text.replace('"--resume": false', '"--resume": true'))
    with pytest.raises(InputError, match="--resume is True, but False in process 0"):
        facts_of(load_recipe("lstm"))


def test_another_torch_is_allowed_and_told(monkeypatch):
    _Told(monkeypatch, lambda text: text.replace('"torch": "', '"torch": "9'))
    (note,) = facts_of(load_recipe("lstm"))
    assert "different versions of torch: " in note


def test_one_process_alone_agrees_with_itself():
    assert facts_of(load_recipe("lstm")) == []


def test_nobody_is_lost_while_only_the_store_is_silent():
    """Regression: a process whose last heartbeat was older than the store's last answer was blamed for its machine."""
    monitor = object.__new__(PeerMonitor)
    monitor._failure, monitor._heard = "", time.monotonic() - 3.5
    peer = _Peer(0)
    peer.heard = monitor._heard - 0.9
    assert monitor._problem([peer], silent_s=4) == ""
    peer.heard = monitor._heard - 4.1
    assert monitor._problem([peer], silent_s=4) == "process 0 was lost: no heartbeat for 4 s"
