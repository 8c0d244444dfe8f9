"""Publish repeatedly, each time killed at a later file operation; print the results as JSON.

It is a program, so the forking process has no threads. The n-th child kills itself
with SIGKILL at its n-th file operation; the first child that finishes ends the series.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from models.checkpoint.manifest import read_manifest, verify_files
from models.checkpoint.registry import LocalRegistry, open_registry
from tests.support.checkpoints import write_minimal

FILE_OPERATIONS = {
    "open",
    "os.rename",
    "os.mkdir",
    "os.listdir",
    "os.scandir",
    "os.remove",
    "shutil.rmtree",
    "fcntl.flock",
}


PUBLISHED = 12
"""Initial versions: each deleter killed late has deleted one, and the next deletes another."""


def die_at(operation: int) -> None:
    """Kill this process at its n-th file operation from now on."""
    left = operation

    def hook(event: str, _arguments: object) -> None:
        nonlocal left
        if event in FILE_OPERATIONS:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(hook)


def survives(operation: int, work: Callable[[], object]) -> bool:
    """True if a child that dies at the n-th operation finishes its work first."""
    child = os.fork()
    if child == 0:
        die_at(operation)
        work()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in {0, signal.SIGKILL}
    return status == 0


def series(work: Callable[[], object], look: Callable[[], list[int]]) -> list[list[int]]:
    """Return the result of a check after each death, and after the finished work."""
    told: list[list[int]] = []
    done = False
    while not done:
        done = survives(len(told), work)
        told.append(look())
    return told


def main(root: Path) -> None:
    """Kill publishers, alias changes, deleters and fetchers at every operation."""
    registry = LocalRegistry(root / "registry", create=True)
    for _ in range(PUBLISHED):
        registry.publish("m", write_minimal)
    registry.set_alias("m", "champion", 1)

    def look() -> list[int]:
        versions = registry.versions("m")
        for number in versions:
            path = registry.resolve(f"m@{number}").path
            verify_files(path, read_manifest(path))
        return [len(versions), registry.resolve("m").number]

    report: dict[str, object] = {
        "publish": series(lambda: registry.publish("m", write_minimal), look),
        "alias": series(lambda: registry.set_alias("m", "champion", registry.versions("m")[-1]), look),
        "delete": series(lambda: registry.delete("m", registry.versions("m")[0]), look),
    }
    versions = root / "registry" / "m" / "versions"
    report["left"] = [path.name for path in versions.iterdir() if path.name.startswith(".tmp-")]
    report["swept"] = registry.sweep(older_than_s=0)
    report["in tombstones"] = [str(path) for path in versions.glob(".deleted-*/*")]
    report["fetch"] = fetches(root)
    sys.stdout.write(json.dumps(report))


def fetches(root: Path) -> list[list[int]]:
    """Kill fetchers of a version from a store, then fetch another; the last value is the number of leftover folders.

    A version folder in the cache is either complete or missing.
    """
    publisher = open_registry("memory://killed", cache=root / "publisher")
    publisher.publish("m", write_minimal)
    registry = open_registry("memory://killed", cache=root / "cache")
    version = registry.resolve("m")

    def look() -> list[int]:
        there = version.path.exists()
        if there:
            verify_files(version.path, read_manifest(version.path))
        return [int(there)]

    told = series(lambda: registry.fetch(version), look)
    publisher.publish("m", lambda folder: write_minimal(folder, content=b"others"))
    registry.fetch(registry.resolve("m@2"))
    left = list((root / "cache").rglob(".tmp-*"))
    return [*told, [len(left)]]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
