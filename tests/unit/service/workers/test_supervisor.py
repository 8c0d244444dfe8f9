"""The supervisor: system failures, hung workers, shared folders, preloading."""

import errno
import importlib.util
import math
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.api_keys import file_stamp
from service.workers import supervisor as workers_supervisor
from service.workers.pool import HEARTBEAT_INTERVAL_S
from service.workers.supervisor import LockedFolder, Supervisor
from tests.support.services import ROOT


@pytest.fixture
def supervisor():
    return Supervisor(2, name="host", patience_s=1)


def test_a_worker_that_cannot_be_forked_is_tried_again_later(supervisor, monkeypatch):
    """Memory may still be short after a worker's death; the other workers keep running."""

    def refuse():
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", refuse)
    place = supervisor._slots[1]
    place.due_s = 0.0
    assert supervisor._start_due() is None
    assert (place.pid, place.delay_s) == (None, 0.5)
    assert 0 < supervisor._next_s() <= 0.5
    assert list(supervisor._status.restarts) == [0, 0]


@pytest.mark.parametrize("change", ["replaced", "missing", "none"])
def test_a_worker_that_fails_after_the_program_was_replaced_stops_the_service(
    supervisor, monkeypatch, tmp_path, change
):
    """A forked worker would mix modules of both programs; without a change it is started again."""
    told = []
    monkeypatch.setattr(workers_supervisor._log, "error", lambda event, **_: told.append(event))
    file, pid = tmp_path / "supervisor.py", 10**7
    file.write_text("old")
    monkeypatch.setattr(workers_supervisor, "__file__", str(file))
    supervisor._program = file_stamp(Path(workers_supervisor.__file__))
    supervisor._listening = socket.socket()
    supervisor._status.composed[0], supervisor._slots[0].pid = 1, pid
    if change != "none":
        file.rename(tmp_path / "old")
    if change == "replaced":
        file.write_text("new")
    supervisor._died(0, 1)
    stops = change != "none"
    assert (supervisor._stopping is not None, supervisor._exit_code) == (stops, int(stops))
    assert (supervisor._slots[0].due_s is None) == stops
    assert told == ["the program was replaced while it ran; the service stops" if stops else "worker died"]
    supervisor._listening.close()


@pytest.fixture
def clock(monkeypatch):
    """Clock in seconds that tests set."""
    now = [0.0]
    monkeypatch.setattr(workers_supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def killed(monkeypatch):
    """Process ids of the killed workers."""
    pids = []
    monkeypatch.setattr(os, "kill", lambda pid, _signal: pids.append(pid))
    return pids


@pytest.fixture
def watching(clock, killed):
    supervisor = Supervisor(2, name="host", patience_s=1, hang_timeout_s=5.0)
    for number, slot in enumerate(supervisor._slots):
        slot.pid = number
    return supervisor, clock, killed


def looks(watching, count, beating=()):
    """Workers killed in `count` checks; workers in `beating` send a heartbeat before each check."""
    supervisor, clock, killed = watching
    killed.clear()
    for _ in range(count):
        for worker in beating:
            supervisor._status.heartbeats[worker] += 1
        clock[0] += supervisor._next_s()
        supervisor._kill_hung()
    return [*killed]


def test_one_that_says_nothing_for_five_looks_hangs(watching):
    assert looks(watching, 1, beating=[0, 1]) == []
    assert looks(watching, 4, beating=[0]) == []
    assert looks(watching, 1, beating=[0]) == [1]
    assert looks(watching, 5, beating=[0]) == []  # reported once


def test_one_that_has_not_begun_is_being_started(watching):
    assert looks(watching, 20, beating=[0]) == []


def test_one_that_took_the_place_of_another_is_listened_to_anew(watching):
    looks(watching, 1, beating=[0, 1])
    looks(watching, 4, beating=[0])
    watching[0]._status.mark_stopped(1)
    assert looks(watching, 10, beating=[0]) == []


def test_a_look_that_comes_late_counts_as_one(watching):
    """The complete machine was suspended, so no worker could send heartbeats."""
    looks(watching, 1, beating=[0, 1])
    watching[1][0] += 1000
    watching[0]._kill_hung()
    assert watching[2] == []
    assert looks(watching, 10, beating=[0, 1]) == []


def test_nobody_is_to_speak_more_often_than_workers_do(clock):
    supervisor = Supervisor(2, name="host", patience_s=1, hang_timeout_s=0.01)
    assert supervisor._next_s() == HEARTBEAT_INTERVAL_S


def test_without_a_limit_nobody_is_looked_at(clock):
    assert Supervisor(2, name="host", patience_s=1)._check_s == math.inf


def left_over(parent, kind="weights"):
    """Non-empty folder whose holder has died."""
    folder = LockedFolder(kind, parent)
    (folder.path / "file").write_text("x")
    folder._lock.close()
    return folder.path


def test_unlocked_folder_is_removed_by_the_next(tmp_path):
    old = left_over(tmp_path)
    new = LockedFolder("weights", tmp_path)
    assert (old.exists(), new.path.exists()) == (False, True)
    new.remove()
    assert not new.path.exists()


def test_locked_folder_is_kept(tmp_path):
    held = LockedFolder("weights", tmp_path)
    other = LockedFolder("weights", tmp_path)
    assert held.path.exists()
    held.remove()
    other.remove()


def test_one_that_another_service_sweeps_before_it_is_held_is_made_anew(tmp_path, monkeypatch):
    make, made = tempfile.mkdtemp, []

    def swept_at_first(*names):
        made.append(Path(make(*names)))
        if len(made) == 1:
            made[0].rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept_at_first)
    folder = LockedFolder("weights", tmp_path)
    assert [folder.path] == [one for one in made if one.exists()]
    folder.remove()


def test_other_kinds_links_and_files_are_left_alone(tmp_path):
    kept = left_over(tmp_path, "sockets")
    (tmp_path / "gramophone-file.weights").write_text("x")
    (tmp_path / "gramophone-link.weights").symlink_to(kept)
    LockedFolder("weights", tmp_path).remove()
    assert (kept / "file").exists()
    assert (tmp_path / "gramophone-file.weights").exists()
    assert (tmp_path / "gramophone-link.weights").exists()


def test_a_folder_of_somebody_s_with_such_a_name_is_left_alone(tmp_path):
    theirs = tmp_path / "gramophone-weights-of-mine"
    theirs.mkdir()
    LockedFolder("weights", tmp_path).remove()
    assert theirs.exists()


def test_every_module_is_there():
    names = {*workers_supervisor._ALWAYS, *workers_supervisor._NEURAL}
    assert all(importlib.util.find_spec(name) is not None for name in names)


def test_n_gram_models_bring_no_torch():
    program = (
        "import sys; from service.workers.supervisor import preload; import service.app; "
        "preload(networks=False, float32=True); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_no_thread_runs_that_a_fork_would_lose():
    program = (
        "import threading; from service.workers.supervisor import preload; import service.app; "
        "preload(networks=True, float32=True); assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
