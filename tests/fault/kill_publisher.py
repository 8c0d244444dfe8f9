"""Publish again and again, each time killed at a later file operation; print what is left as JSON.

Run as a program, so that the process that forks has no threads. The n-th child kills itself
with SIGKILL at its n-th file operation; the first child that finishes ends the series.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from models.checkpoint.local import LocalRegistry
from models.checkpoint.manifest import read_manifest, verify_files
from tests.checkpoints import write_minimal

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
    """Whether a child that dies at the n-th operation gets through its work before."""
    child = os.fork()
    if child == 0:
        die_at(operation)
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def main(root: Path) -> None:
    """Kill publishers, then movers of an alias, at every operation."""
    registry = LocalRegistry(root, create=True)
    registry.publish("m", write_minimal)
    registry.set_alias("m", "champion", 1)
    report: dict[str, list[list[int]]] = {"publish": [], "alias": []}
    for kind, work in {
        "publish": lambda: registry.publish("m", write_minimal),
        "alias": lambda: registry.set_alias("m", "champion", registry.versions("m")[-1]),
    }.items():
        done = False
        while not done:
            done = survives(len(report[kind]), work)
            versions = registry.versions("m")
            for number in versions:
                path = registry.resolve(f"m@{number}").path
                verify_files(path, read_manifest(path))
            report[kind].append([len(versions), registry.resolve("m").number])
    left = [p.name for p in (root / "m" / "versions").iterdir() if p.name.startswith(".")]
    sys.stdout.write(json.dumps({**report, "left": left}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
