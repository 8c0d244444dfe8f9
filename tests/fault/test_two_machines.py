"""Distributed training on two machines without a shared disk: a torchrun and a folder for each."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from models.checkpoint.registry import open_registry
from tests.support.http import free_port
from training.commands import run_train

LIMIT_S = 240


class Machine:
    """One torchrun with one process.

    Args:
        folder: the machine's working folder, with `corpus.txt`.
        rank: rank among the machines.
        port: port of the first machine, where they connect.
        arguments: arguments of `gramophone train`, in addition to those common to all tests.
    """

    def __init__(self, folder, rank, port, arguments):
        self.folder = folder
        self.log = folder / f"log{port}"
        meeting = ["--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1"]
        meeting += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        command = ["service.cli", "train", "lstm", "--name", "m", "--registry", "registry", "--json"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *meeting, "-m", *command, *arguments],
                cwd=folder,
                env=os.environ | {"OMP_NUM_THREADS": "1"},  # noqa: TID251 - a process like this one
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def state(self):
        """Path of the saved training state."""
        return self.folder / "registry" / ".runs" / "m" / "lstm" / "state.pt"

    def wait_until_it_trains(self):
        """Wait until the state was saved twice."""
        for _ in range(2):
            before = self._saved_at()
            until = time.monotonic() + LIMIT_S
            while self._saved_at() == before:
                assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()  # noqa: PT018
                time.sleep(0.001)

    def die(self):
        """Kill torchrun and its process at once, as in a power cut."""
        pid = self.process.pid
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for number in (pid, *map(int, started)):
                os.kill(number, signal.SIGKILL)
        self.process.wait()

    def ended(self):
        """Return the exit status and the complete output."""
        status = self.process.wait(timeout=LIMIT_S)
        return status, self.log.read_text()

    def _saved_at(self):
        return self.state.stat().st_mtime_ns if self.state.exists() else 0


@contextlib.contextmanager
def two_machines(folders, arguments, *, others=None):
    """Start both machines; `others` are the second one's arguments if they differ."""
    port = free_port()
    machines = [Machine(folders[0], 0, port, arguments), Machine(folders[1], 1, port, others or arguments)]
    try:
        yield machines
    finally:
        for machine in machines:
            machine.die()


pytestmark = pytest.mark.long
TEXT = "the cat sat on the mat\na dog ran on a log\nthe dog saw the cat\n" * 40
SET = ["tokenizer.kind=word", "neural.hidden_size=8", "neural.embedding_size=8", "neural.dropout=0.2"]
SET += ["train.max_steps=60", "train.max_minutes=100", "train.epochs=100", "train.batch_size=4"]
SET += ["train.bptt_length=8", "train.validations=5", "train.save_minutes=0", "train.precision=float32"]
ARGUMENTS = ["--corpus", "corpus.txt", *(part for key in SET for part in ("--set", key))]


def folders_in(folder, *texts):
    """Create a folder for each machine, with its text."""
    folders = [folder / name for name in ("first", "second")]
    for own, text in zip(folders, texts or (TEXT, TEXT), strict=True):
        own.mkdir()
        (own / "corpus.txt").write_text(text)
    return folders


def published(folder):
    """Return the folder of the only version."""
    registry = open_registry(folder / "registry")
    assert registry.versions("m") == [1]
    return registry.fetch(registry.resolve("m@1"))


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Train on two machines undisturbed; return their folders."""
    folders = folders_in(tmp_path_factory.mktemp("together"))
    with two_machines(folders, ARGUMENTS) as machines:
        for status, said in [machine.ended() for machine in machines]:
            assert status == 0, said
    return folders


def test_only_the_first_machine_publishes_and_tells(together):
    published(together[0])
    first, second = (next(folder.glob("log*")).read_text() for folder in together)
    assert first.count("training the lstm network: done") == 1
    assert json.loads(first[first.index("{") :])["model"] == "m@1"
    assert not second
    assert open_registry(together[1] / "registry").models() == []
    assert not list(together[1].glob("registry/.runs/*"))


def test_two_machines_come_to_the_weights_of_one(together, tmp_path):
    """Up to rounding, after 60 updates."""
    folder, _ = folders_in(tmp_path)
    run_train("lstm", name="m", registry=folder / "registry", corpus=[folder / "corpus.txt"], assignments=SET)
    alone = load_file(published(folder) / "model.safetensors")
    for name, tensor in load_file(published(together[0]) / "model.safetensors").items():
        torch.testing.assert_close(tensor, alone[name], rtol=1e-4, atol=1e-5)


def test_evicted_then_killed_then_resumed_equals_left_in_peace_bit_for_bit(together, tmp_path):
    """Only the second machine gets SIGTERM and later loses power; only the first one's disk has the state."""
    folders = folders_in(tmp_path)
    with two_machines(folders, ARGUMENTS) as (first, second):
        first.wait_until_it_trains()
        second.process.send_signal(signal.SIGTERM)
        assert second.ended()[0] != 0
        assert "ended by SIGTERM; the training is saved in" in first.ended()[1]
    with two_machines(folders, [*ARGUMENTS, "--resume"]) as (first, second):
        first.wait_until_it_trains()
        second.die()
        status, said = first.ended()
        assert status != 0
        assert "process 1 on" in said
        assert "with --resume, the training continues" in said
        assert said.count("Traceback") == 1  # torchrun's own
    with two_machines(folders, [*ARGUMENTS, "--resume"]) as machines:
        for status, said in [machine.ended() for machine in machines]:
            assert status == 0, said
    whole, resumed = (published(f) / "model.safetensors" for f in (together[0], folders[0]))
    assert whole.read_bytes() == resumed.read_bytes()


def test_another_text_on_one_machine_is_refused_by_name(tmp_path):
    """On both machines, before the training starts."""
    folders = folders_in(tmp_path, TEXT, TEXT.replace("mat", "hat"))
    with two_machines(folders, ARGUMENTS) as machines:
        for status, said in [machine.ended() for machine in machines]:
            assert status != 0
            assert "process 1 on" in said
            assert "the training text is sha256" in said
    assert not list(tmp_path.glob("*/registry/.runs/*"))
