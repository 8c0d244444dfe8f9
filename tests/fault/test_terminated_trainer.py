"""SIGTERM during training, and a hung process in distributed training."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from models.checkpoint.registry import open_registry

LIMIT_S = 200
SET = ["tokenizer.kind=word", "neural.hidden_size=8", "neural.embedding_size=8", "train.batch_size=4"]
SET += ["train.bptt_length=8", "train.max_minutes=100", "train.epochs=1000", "train.max_steps=300"]
SET += ["train.validations=2", "train.save_minutes=0.05"]


@pytest.fixture
def train(tmp_path):
    """Starts a training of `m`; its lines of progress come from its standard error."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog ran on a log\n" * 60)
    command = [sys.executable, "-m", "service.cli", "train", "lstm", "--name", "m", "--corpus", str(corpus)]
    command += ["--registry", str(tmp_path / "registry"), *(part for key in SET for part in ("--set", key))]
    started = []

    def start(*arguments):
        started.append(
            subprocess.Popen(
                [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_training_is_saved_and_the_line_says_how_to_go_on(train, tmp_path):
    """Between two savings, so that it is the signal that saves; gone on with, it is published."""
    process = train("--set", "train.max_steps=100000000")
    folder = tmp_path / "registry" / ".runs" / "m"
    state = folder / "lstm" / "state.pt"
    while not state.exists():
        assert process.poll() is None
        time.sleep(0.01)
    before = state.stat().st_mtime_ns
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert state.stat().st_mtime_ns > before
    assert said.splitlines()[-1] == (
        f"gramophone: ended by SIGTERM; the training is saved in {folder}; the same command with --resume goes on "
        "with it"
    )
    assert open_registry(tmp_path / "registry").models() == []
    process = train("--resume")
    out, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    assert "resumed after " in out + said
    assert open_registry(tmp_path / "registry").models() == ["m"]


def test_before_there_is_anything_to_save_it_ends_at_once(train, tmp_path):
    """Here while it waits to be fed its text."""
    (tmp_path / "corpus.txt").unlink()
    corpus = tmp_path / "corpus.txt"
    subprocess.run(["mkfifo", str(corpus)], check=True)
    process = train()
    with corpus.open("w"):  # opened once the program reads
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert said.splitlines()[-1] == (
        "gramophone: ended by SIGTERM; nothing was saved yet, so the same command begins anew"
    )
    assert not list(tmp_path.glob("registry/.runs/*"))


PATIENCE_S = 3
HANG_LIMIT_S = 120


@pytest.fixture
def processes(tmp_path):
    """Two that train together without end, as torchrun would start them; they save after every update."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    command = [
        sys.executable,
        "-m",
        "tests.support.resumable",
        str(tmp_path / "state"),
        str(tmp_path / "weights"),
    ]
    command += ['{"max_steps": 100000000, "epochs": 100000000}', str(PATIENCE_S)]
    common = os.environ | meeting | {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "1"}  # noqa: TID251
    started = [
        subprocess.Popen(command, env=common | {"RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    until = time.monotonic() + HANG_LIMIT_S
    while not (tmp_path / "state").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("hung", "told"),
    [(1, "process 1 on .* is gone"), (0, "process 0 on .* is gone")],
    ids=["second", "first"],
)
def test_the_other_one_ends_and_names_it(processes, hung, told):
    processes[hung].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    _, said = processes[1 - hung].communicate(timeout=HANG_LIMIT_S)
    assert processes[1 - hung].returncode == 1
    assert re.search(rf"ProcessLostError: .*{told}", said), said
    assert time.monotonic() - began < PATIENCE_S + 60


PROGRAM = f"""
import os, signal, sys, time
import torch
from torch.nn import Parameter
from models.errors import InvalidInputError
from training.neural.distributed import Processes, UpdateStatus, exit_on_sigterm, join_processes
with exit_on_sigterm(), join_processes(torch.device("cpu"), patience_s={PATIENCE_S}):
    peers = Processes.current()
    rank = peers.rank
    def exchange():
        parameter = Parameter(torch.ones(2))
        peers.exchange([parameter], UpdateStatus(1, 1, False, False), weight=0.3)
"""


@pytest.fixture
def together():
    """Runs lines in three processes; returns each one's exit status and what it said."""
    started = []

    def run(*lines, signals=()):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free.getsockname()[1]),
                "WORLD_SIZE": "3",
            }
        command = [sys.executable, "-c", PROGRAM + "".join(f"    {line}\n" for line in lines)]
        common = os.environ | meeting | {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "1"}  # noqa: TID251
        started.extend(
            subprocess.Popen(
                command,
                env=common | {"RANK": rank},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in "012"
        )
        for rank in signals:
            assert started[rank].stdout.readline() == "waits\n"
            started[rank].send_signal(signal.SIGTERM)
        return started

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ended(process):
    """The exit status of a process and what it said."""
    _, said = process.communicate(timeout=HANG_LIMIT_S)
    return process.returncode, said


def test_one_that_is_busy_is_waited_for_beyond_patience(together):
    """It beats, so it lives; and they meet again and again."""
    lines = [f"if rank == 2: time.sleep({2 * PATIENCE_S})", "for _ in range(20): peers.barrier()"]
    lines += ["assert peers.gather_texts(str(rank)) == ['0', '1', '2']"]
    for process in together(*lines):
        assert ended(process)[0] == 0


@pytest.mark.parametrize("waits_in", ["peers.barrier()", "exchange()"])
@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
def test_all_others_name_the_lost_one(together, waits_in, number):
    first, second, _ = together(f"if rank == 2: os.kill(os.getpid(), signal.{number})", waits_in)
    for process in (first, second):
        status, said = ended(process)
        assert status == 1
        assert re.search("ProcessLostError: process 2 on .* is gone; start all of them again", said), said


@pytest.mark.parametrize("waits_in", ["peers.barrier()", "exchange()"])
def test_without_the_first_one_the_others_name_it(together, waits_in):
    """Its store is gone with it."""
    _, *others = together("if rank == 0: os.kill(os.getpid(), signal.SIGKILL)", waits_in)
    for process in others:
        assert re.search("ProcessLostError: process 0 on .* is gone; start", ended(process)[1])


def test_what_ended_a_process_is_told_to_those_who_wait(together):
    first, second, _ = together(
        "if rank == 2: raise InvalidInputError('corpus.txt: no such file', parameter='c')", "peers.barrier()"
    )
    for process in (first, second):
        _, said = ended(process)
        assert re.search(
            r"ProcessLostError: process 2 on .* ended: corpus\.txt: no such file; start", said
        ), said


def test_a_failed_exchange_among_the_living_says_what_failed(together):
    first, *_ = together("if rank == 2: time.sleep(60)", "exchange()")
    assert re.search("an exchange between the processes failed: .*Timed out", ended(first)[1])


def test_sigterm_ends_a_wait_for_others(together):
    lines = ["if rank == 2: time.sleep(60)", "print('waits', flush=True)", "peers.barrier()"]
    first, second, _ = together(*lines, signals=[1])
    assert ended(second)[0] == 143
    assert re.search("process 1 on .* ended: by SIGTERM", ended(first)[1])
