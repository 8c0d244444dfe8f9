"""Train and publish repeatedly, killed at random moments of a seed; print the versions after each as JSON.

python -m tests.fault.kill_trainer FOLDER SEED
"""

import json
import os
import sys
import time
from pathlib import Path

import matplotlib.figure  # noqa: F401 - what children need is imported once, here

import training.commands
import training.publish  # noqa: F401
from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.ngram.model import NGramModel  # noqa: F401
from service.cli.main import main as gramophone
from tests.fault.forked import Child, moments, told_by_child

KILLS_ANYWHERE = 8
KILLS_WHILE_PUBLISHING = 12


def train(folder):
    """Run the user's command."""
    sys.argv = ["gramophone", "train", "ngram", "--name", "m", "--corpus", str(folder / "corpus.txt")]
    sys.argv += ["--registry", str(folder / "registry"), "--set", "ngram.order=2"]
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    gramophone()


def listed(registry):
    """Return the version numbers; each version must load."""
    numbers = registry.versions("m")
    for number in numbers:
        load_checkpoint(registry.resolve(f"m@{number}").path)
    return numbers


def entries(registry):
    """Return the names of versions and of everything beside them."""
    return {path.name for path in (registry.root / "m" / "versions").iterdir()}


def main(folder, seed):
    """Kill anywhere, then while a version is being written; finally let one finish."""
    (folder / "corpus.txt").write_text("the cat sat on the mat\na dog sat on a log\n" * 50)
    registry = LocalRegistry(folder / "registry", create=True)
    began_s = time.monotonic()
    assert Child(lambda: train(folder)).wait() == 0
    took_s = time.monotonic() - began_s
    counts, killed = [told_by_child(lambda: listed(registry))], 0
    for moment_s in moments(seed, KILLS_ANYWHERE, took_s):
        killed += Child(lambda: train(folder)).kill_after(lambda: True, moment_s)
        counts.append(told_by_child(lambda: listed(registry)))
    for moment_s in moments(f"publishing {seed}", KILLS_WHILE_PUBLISHING, 0.04):
        before = entries(registry)
        child = Child(lambda: train(folder))
        killed += child.kill_after(lambda before=before: entries(registry) - before, moment_s)
        counts.append(told_by_child(lambda: listed(registry)))
    assert Child(lambda: train(folder)).wait() == 0
    counts.append(told_by_child(lambda: listed(registry)))
    left = [name for name in entries(registry) if name.startswith(".")]
    sys.stdout.write(json.dumps({"versions": counts, "killed": killed, "left": left}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
