"""Number of torch's threads during a training, adapted to the cores, on a simulated machine."""

import itertools
import os
import threading

import pytest
import torch

from training.neural.threads import ThreadTuner, read_waits


class Machine:
    """Clocks of a process whose updates take a second; `share` is that of the wanted cores it gets.

    Attributes:
        speeds: tokens per second by number of threads.
    """

    def __init__(self, monkeypatch, *, threads=4, share=1.0, speeds=None, knows_waits=True):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        monkeypatch.setattr(torch, "set_num_threads", self.set_threads)
        monkeypatch.setattr(torch, "mm", lambda *_: self.run(0.25))
        self.now = self.cpu = self.waited = 0.0
        self.threads, self.share, self.knows_waits = threads, share, knows_waits
        self.history = []
        self.speeds = speeds or {1: 100, 2: 190, 3: 270, 4: 350}

    def set_threads(self, threads):
        self.threads = threads
        self.history.append(threads)

    def run(self, seconds):
        self.now += seconds
        self.cpu += seconds * self.threads * self.share
        self.waited += seconds * self.threads * (1 - self.share)

    def tuner(self, **options):
        waits = (lambda: {"1": self.waited}) if self.knows_waits else dict
        return ThreadTuner(clock=lambda: self.now, cpu_clock=lambda: self.cpu, waits=waits, **options)

    def train(self, tuner, updates):
        """Run updates; return the threads of each."""
        used = []
        for _ in range(updates):
            used.append(self.threads)
            with tuner.measured(self.speeds[self.threads]):
                self.run(1)
        return used


@pytest.mark.parametrize("knows_waits", [True, False])
def test_nothing_changes_on_a_quiet_machine(monkeypatch, knows_waits):
    machine = Machine(monkeypatch, share=0.95, knows_waits=knows_waits)
    tuner = machine.tuner()
    with tuner.running():
        assert set(machine.train(tuner, 500)) == {4}
    assert machine.history == []
    assert tuner.shortage == tuner.note() == ""
    facts = tuner.facts()
    assert facts == {"tokens_per_second": 350, "expected": 368, "cores": 3.8, "threads": 4}


def test_threads_that_sleep_lack_no_core(monkeypatch):
    machine = Machine(monkeypatch)
    tuner = machine.tuner()
    with tuner.running():
        for _ in range(50):
            with tuner.measured(100):
                machine.now += 1  # one of four threads computes
                machine.cpu += 1
    assert machine.history == []


@pytest.mark.parametrize("knows_waits", [True, False])
def test_a_busy_machine_lets_a_training_begin_with_fewer_threads(monkeypatch, knows_waits):
    machine = Machine(monkeypatch, share=0.3, knows_waits=knows_waits)
    tuner = machine.tuner()
    with tuner.running():
        assert set(machine.train(tuner, 20)) == {1}
        assert tuner.shortage == " on 0.3 of 4 cores"
    assert machine.history == [1, 4]
    assert tuner.note() == (
        "this process got 0.3 of 4 cores (others use them, or a quota does): 100 tokens/s in updates, about 1,330 "
        "expected of idle cores"
    )


def test_threads_become_fewer_while_that_helps_and_more_when_the_machine_is_quiet_again(monkeypatch):
    machine = Machine(monkeypatch)
    tuner = machine.tuner()
    with tuner.running():
        machine.train(tuner, 10)
        machine.share, machine.speeds = 0.4, {1: 80, 2: 40, 3: 30, 4: 20}
        used = machine.train(tuner, 20)
        assert used[0] == 4
        assert used[-1] == 1
        assert set(used) == {1, 2, 4}
        machine.share, machine.speeds = 1.0, {1: 100, 2: 190, 3: 270, 4: 350}
        used = machine.train(tuner, 40)
        assert used[-1] == 4
        assert set(used) == {1, 2, 4}
    assert tuner.note() == ""
    assert tuner.facts()["expected"] == 350


def test_vain_attempts_become_rare(monkeypatch):
    """One thread has its core; more threads are slower, as others use the other cores."""
    machine = Machine(monkeypatch, threads=2)
    tuner = machine.tuner()
    with tuner.running():
        machine.share, machine.speeds = 0.5, {1: 100, 2: 60}
        machine.train(tuner, 4)
        machine.share = 1.0
        used = machine.train(tuner, 2000)
    attempts = [at for at in range(1, 2000) if used[at] == 2 and used[at - 1] == 1]
    gaps = [after - before for before, after in itertools.pairwise(attempts)]
    assert gaps[:3] == sorted(gaps[:3])
    assert gaps[0] < gaps[1] < gaps[2]
    assert gaps[-1] == max(gaps) <= 140
    assert used.count(2) <= 2 * len(attempts) + 2


def test_fewer_threads_that_do_not_help_are_left_again(monkeypatch):
    machine = Machine(monkeypatch, threads=2)  # as with a quota of 1.5 cores
    tuner = machine.tuner()
    with tuner.running():
        machine.share, machine.speeds = 0.75, {1: 100, 2: 140}
        used = machine.train(tuner, 1000)
    assert used.count(1) < 30


def test_an_explicit_number_of_threads_stays(monkeypatch):
    machine = Machine(monkeypatch, share=0.2)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    tuner = machine.tuner()
    with tuner.running():
        assert set(machine.train(tuner, 20)) == {4}
    assert machine.history == []
    assert "0.8 of 4 cores" in tuner.note()


def test_one_thread_stays_one(monkeypatch):
    machine = Machine(monkeypatch, threads=1, share=0.5)
    tuner = machine.tuner()
    with tuner.running():
        machine.train(tuner, 20)
    assert machine.history == []
    assert "0.5 of 1 cores" in tuner.note()


def test_training_on_a_gpu_is_neither_measured_nor_changed(monkeypatch):
    machine = Machine(monkeypatch, share=0.2)
    tuner = machine.tuner(on_cpu=False)
    with tuner.running():
        machine.train(tuner, 20)
    assert machine.history == []
    assert tuner.facts() == {}
    assert tuner.note() == ""


def test_a_thread_that_ended_does_not_hide_the_others_waits(monkeypatch):
    machine = Machine(monkeypatch, threads=2)
    waits = {"1": 0.0, "2": 100.0}
    tuner = ThreadTuner(clock=lambda: machine.now, cpu_clock=lambda: machine.cpu, waits=lambda: dict(waits))
    with tuner.measured(10):
        machine.run(3)
    del waits["2"]
    waits["1"] += 6
    with tuner.measured(10):
        machine.run(3)
    assert tuner.shortage == " on 2.0 of 2 cores"


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel counts no waits")  # noqa: PTH110
def test_the_kernel_counts_waits_of_each_thread():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    before = read_waits()
    thread.start()
    assert len(read_waits()) > len(before) >= 1
    done.set()
    thread.join()
    assert min(before.values()) >= 0
