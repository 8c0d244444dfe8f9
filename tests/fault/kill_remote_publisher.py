"""Publish to a store repeatedly, each time killed after one more request; print the results as JSON.

It is a program, so the forking process has no threads; only children access the store.
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
    """Kill this process after a number of replies from the store."""
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
    """Publish new content from a separate cache; die after a number of requests."""
    with tempfile.TemporaryDirectory() as cache:
        registry = open_registry(address, cache=Path(cache))
        die_after(registry._store, requests)
        registry.publish("m", partial(write_two_files, content=b"%d" % requests))


def write_two_files(folder, content):
    """Write the smallest checkpoint with one more file."""
    (folder / "more.bin").write_bytes(b"more " + content)
    write_minimal(folder, content=content)


def look(address, pipe):
    """Write the number of versions, all verified, and of removable files to the pipe."""
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
    """True if a child finished its work."""
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
