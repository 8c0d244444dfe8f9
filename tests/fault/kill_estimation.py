"""Out-of-core estimation, killed at random moments of a seed and restarted; compared with an undisturbed run.

python -m tests.fault.kill_estimation FOLDER SEED
"""

import json
import os
import random
import sys
from pathlib import Path

import matplotlib.figure  # noqa: F401 - what children need is imported once, here

import training.commands
import training.scale.duckdb_engine  # noqa: F401
from service.cli.main import main as gramophone
from tests.fault.forked import Child, moments

KILLS = 4
STAGES_BETWEEN = 3


def estimate(folder, name):
    """Run the user's command; its output goes to a file."""
    said = os.open(folder / f"said-{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.argv = ["gramophone", "train", "ngram", "--engine", "duckdb", "--name", name]
    sys.argv += ["--corpus", str(folder / "corpus.txt"), "--registry", str(folder / "registry")]
    sys.argv += ["--set", "ngram.order=3", "--set", "ngram.prune=[0, 0, 1]"]
    gramophone()


def stages(folder):
    """Return the number of complete stages of the killed run."""
    return len(list((folder / "registry").glob(".runs/killed/estimation/stage-*")))


def main(folder, seed):
    """Kill each run some stages later, then let one finish."""
    words = random.Random(1)
    lines = (" ".join(f"w{int(words.paretovariate(0.7)) % 500}" for _ in range(9)) for _ in range(1000))
    (folder / "corpus.txt").write_text("\n".join(lines))
    assert Child(lambda: estimate(folder, "peace")).wait() == 0
    kept, killed = [], 0
    for moment_s in moments(seed, KILLS, 0.05):
        enough = stages(folder) + STAGES_BETWEEN
        child = Child(lambda: estimate(folder, "killed"))
        killed += child.kill_after(lambda enough=enough: stages(folder) >= enough, moment_s)
        kept.append(stages(folder))
    assert Child(lambda: estimate(folder, "killed")).wait() == 0
    models = (folder / "registry" / name / "versions" / "1" / "ngram.bin" for name in ("peace", "killed"))
    peace, after = (path.read_bytes() for path in models)
    told = {"kept": kept, "killed": killed, "equal": peace == after}
    sys.stdout.write(json.dumps({**told, "said": (folder / "said-killed").read_text()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
