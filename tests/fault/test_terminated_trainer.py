"""SIGTERM during training, and a hung process in distributed training."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models.checkpoint.registry import open_registry
from tests.support.http import free_port

LIMIT_S = 200
SET = ["tokenizer.kind=word", "neural.hidden_size=8", "neural.embedding_size=8", "train.batch_size=4"]
SET += ["train.bptt_length=8", "train.max_minutes=100", "train.epochs=1000", "train.max_steps=300"]
SET += ["train.validations=2", "train.save_minutes=0.05"]


@pytest.fixture
def train(tmp_path):
    """Start a training of `m`; progress lines go to its standard error."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog ran on a log\n" * 60)
    command = [sys.executable, "-m", "service.cli", "train"]
    options = ["--name", "m", "--corpus", str(corpus), "--registry", str(tmp_path / "registry")]
    options += [part for key in SET for part in ("--set", key)]
    started = []

    def start(*arguments, recipe="lstm"):
        started.append(
            subprocess.Popen(
                [*command, recipe, *options, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "2"},  # noqa: TID251 - two networks at once anywhere
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_training_is_saved_and_the_line_says_how_to_go_on(train, tmp_path):
    """The signal comes between two saves, so it causes the save; resumed, the training publishes."""
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
        f"gramophone: ended by SIGTERM; the training is saved in {folder}; the same command with --resume "
        "continues it"
    )
    assert open_registry(tmp_path / "registry").models() == []
    process = train("--resume")
    out, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    assert "resumed after " in out + said
    assert open_registry(tmp_path / "registry").models() == ["m"]


def test_before_there_is_anything_to_save_it_ends_at_once(train, tmp_path):
    """Here it is still waiting for its text."""
    (tmp_path / "corpus.txt").unlink()
    corpus = tmp_path / "corpus.txt"
    subprocess.run(["mkfifo", str(corpus)], check=True)
    process = train()
    with corpus.open("w"):  # returns once the program reads
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert said.splitlines()[-1] == (
        "gramophone: ended by SIGTERM; nothing was saved yet; the same command starts from the beginning"
    )
    assert not list(tmp_path.glob("registry/.runs/*"))


TWO = [
    "--set",
    'mixture.parts=[{recipe="gru"}]',
    "--set",
    "ngram.order=2",
    "--set",
    "train.max_steps=100000000",
]


@pytest.fixture
def training_two(train, tmp_path):
    """A training of two networks side by side that have saved their states, and the ids of their processes."""
    process = train(*TWO, recipe="mixture")
    folder = tmp_path / "registry" / ".runs" / "m"
    until = time.monotonic() + LIMIT_S
    while len(list(folder.glob("*/state.pt"))) < 2:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    networks = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(networks) >= 2
    return process, networks


def test_networks_side_by_side_are_saved_and_continue(train, training_two, tmp_path):
    process, _ = training_two
    states = sorted((tmp_path / "registry" / ".runs" / "m").glob("*/state.pt"))
    before = [state.stat().st_mtime_ns for state in states]
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert "ended by SIGTERM; the training is saved in" in said.splitlines()[-1]
    assert all(state.stat().st_mtime_ns > mtime for state, mtime in zip(states, before, strict=True))
    process = train(*TWO[:-1], "train.max_steps=1", "--resume", recipe="mixture")
    out, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    assert out.count("resumed after ") == 2
    assert open_registry(tmp_path / "registry").models() == ["m"]


def test_networks_end_with_the_command_that_started_them(training_two):
    process, networks = training_two
    process.kill()
    until = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in networks):
        assert time.monotonic() < until
        time.sleep(0.01)


PATIENCE_S = 3
HANG_LIMIT_S = 120


@pytest.fixture
def processes(tmp_path):
    """Start two endless training processes, as torchrun would; they save after every update."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
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
    [(1, "process 1 on .* was lost"), (0, "the machine of process 0 has not answered")],
    ids=["second", "first"],
)
def test_the_other_one_ends_and_names_it(processes, hung, told):
    processes[hung].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    _, said = processes[1 - hung].communicate(timeout=HANG_LIMIT_S)
    assert processes[1 - hung].returncode == 1
    assert re.search(rf"ProcessLostError: .*{told}", said), said
    assert time.monotonic() - began < PATIENCE_S + 60
