"""A process of a shared training that hangs, as one on a machine that lost its network: the other one ends in time."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

PATIENCE_S = 3
LIMIT_S = 120


@pytest.fixture
def processes(tmp_path):
    """Two that train together without end, as torchrun would start them; they save after every update."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "tests.resumable", str(tmp_path / "state"), str(tmp_path / "weights")]
    command += ['{"max_steps": 100000000, "epochs": 100000000}', str(PATIENCE_S)]
    common = os.environ | meeting | {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "1"}  # noqa: TID251
    started = [
        subprocess.Popen(command, env=common | {"RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    until = time.monotonic() + LIMIT_S
    while not (tmp_path / "state").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("hung", "told"),
    [(1, "process 1 on .* is gone"), (0, "the machine of process 0 has not answered")],
    ids=["second", "first"],
)
def test_the_other_one_ends_and_names_it(processes, hung, told):
    processes[hung].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    _, said = processes[1 - hung].communicate(timeout=LIMIT_S)
    assert processes[1 - hung].returncode == 1
    assert re.search(rf"ProcessLostError: .*{told}", said), said
    assert time.monotonic() - began < PATIENCE_S + 60
