"""Work in forked children of a program with its imports done, killed at random moments of a seed.

Only for programs without threads. Starting a program costs seconds, forking it a hundredth of that.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback

LIMIT_S = 240


class Child:
    """Process that does some work and ends."""

    def __init__(self, work):
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_status_of(work))
        self.status = None

    def has_ended(self):
        """True if the process has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def wait(self):
        """Wait for the status: 0 if the work was finished."""
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]
        return self.status

    def kill(self):
        """Send SIGKILL, like the OOM killer; return True if the process was still running."""
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
        return self.wait() != 0

    def kill_after(self, happened, random_s):
        """Kill the process some time after an event; return True if it was still running."""
        until_s = time.monotonic() + LIMIT_S
        while not self.has_ended() and not happened():
            assert time.monotonic() < until_s
            time.sleep(0.0005)
        time.sleep(random_s)
        return self.kill()


def told_by_child(work):
    """Return the JSON value of some work, done in a process of its own."""
    reading, writing = os.pipe()
    child = Child(lambda: os.write(writing, json.dumps(work()).encode()))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    assert child.wait() == 0
    return json.loads(told)


def moments(seed, count, most_s):
    """Return random durations up to a number of seconds."""
    chance = random.Random(seed)
    return [chance.uniform(0, most_s) for _ in range(count)]


def report_of(module, *arguments, **environment):
    """Return the JSON output of a program of this folder."""
    command = [sys.executable, "-m", f"tests.fault.{module}", *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment},  # noqa: TID251
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _status_of(work):
    try:
        work()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:  # noqa: BLE001 - the child of a fork must not go on as its parent
        traceback.print_exc()
        return 1
    return 0
