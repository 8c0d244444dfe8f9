"""Machines that train together, each a torchrun of its own with a folder of its own; all of them are this one."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 240


class Machine:
    """One torchrun with one process.

    Args:
        folder: its own, where it works; `corpus.txt` is in it.
        rank: among the machines.
        port: of the first one, where they meet.
        arguments: of `gramophone train`, besides what is common to all tests.
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
        """What is saved to go on with."""
        return self.folder / "registry" / ".runs" / "m" / "lstm" / "state.pt"

    def wait_until_it_trains(self):
        """Until the state was saved anew, twice."""
        for _ in range(2):
            before = self._saved_at()
            until = time.monotonic() + LIMIT_S
            while self._saved_at() == before:
                assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()  # noqa: PT018
                time.sleep(0.001)

    def die(self):
        """As by a power cut: torchrun and what it started, at once."""
        pid = self.process.pid
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for number in (pid, *map(int, started)):
                os.kill(number, signal.SIGKILL)
        self.process.wait()

    def ended(self):
        """Its exit status and all it said."""
        status = self.process.wait(timeout=LIMIT_S)
        return status, self.log.read_text()

    def _saved_at(self):
        return self.state.stat().st_mtime_ns if self.state.exists() else 0


@contextlib.contextmanager
def two_machines(folders, arguments, *, others=None):
    """Both, started; `others` are the second one's arguments if they differ."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    machines = [Machine(folders[0], 0, port, arguments), Machine(folders[1], 1, port, others or arguments)]
    try:
        yield machines
    finally:
        for machine in machines:
            machine.die()
