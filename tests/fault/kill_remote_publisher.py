"""Publish at a store again and again, each time killed after one more request; print what is left as JSON.

Run as a program, so that the process that forks has no threads: all that asks the store is done in children.
"""

import json
import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from models.checkpoint.manifest import verify_files
from models.checkpoint.registry import open_registry
from tests.support.checkpoints import write_minimal


def die_after(store, requests):
    """Kill this process when the store has answered so many times."""
    left = requests

    def counted(method, *arguments):
        nonlocal left
        answer = method(*arguments)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    for name in ("entries", "read", "upload", "put_if_match"):
        setattr(store, name, partial(counted, getattr(store, name)))


def publish(address, requests):
    """Publish something new, in a cache of its own; dead after so many requests."""
    with tempfile.TemporaryDirectory() as cache:
        registry = open_registry(address, cache=Path(cache))
        die_after(registry._store, requests)
        registry.publish("m", partial(write_two_files, content=b"%d" % requests))


def write_two_files(folder, content):
    """The smallest checkpoint with a file more."""
    (folder / "more.bin").write_bytes(b"more " + content)
    write_minimal(folder, content=content)


def look(address, pipe):
    """Tell how many versions there are, all of which verify, and what can be swept."""
    with tempfile.TemporaryDirectory() as cache:
        registry = open_registry(address, cache=Path(cache))
        published = registry.published()
        for version in published:
            verify_files(registry.fetch(version), registry.manifest(version))
        report = {
            "versions": len(published),
            "swept_young": registry.sweep(older_than_s=3600),
            "swept_old": registry.sweep(older_than_s=-3600),
        }
    os.write(pipe, json.dumps(report).encode())


def in_child(work, *arguments):
    """Whether a child got through its work."""
    child = os.fork()
    if child == 0:
        work(*arguments)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def main(address):
    reports, survived = [], False
    while not survived:
        survived = in_child(publish, address, 1 + len(reports))
        reading, writing = os.pipe()
        assert in_child(look, address, writing)
        reports.append(json.loads(os.read(reading, 1 << 16)))
        os.close(reading)
        os.close(writing)
    most = max(report["swept_old"] for report in reports)
    reports[-1]["swept_old"] = most
    sys.stdout.write(json.dumps(reports))


if __name__ == "__main__":
    main(sys.argv[1])
