"""SIGKILL an estimation past memory between and within its stages: the next run's model is the same to the bit."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = 3


@pytest.fixture
def command(tmp_path):
    """The command that publishes a model of some thousand lines under a name."""
    words = random.Random(1)
    lines = (" ".join(f"w{int(words.paretovariate(0.7)) % 500}" for _ in range(9)) for _ in range(2000))
    (tmp_path / "corpus.txt").write_text("\n".join(lines))

    def of(name):
        run = [sys.executable, "-m", "service.cli", "train", "ngram", "--engine", "duckdb", "--name", name]
        files = ["--corpus", str(tmp_path / "corpus.txt"), "--registry", str(tmp_path / "registry")]
        return [*run, *files, "--set", "ngram.order=3", "--set", "ngram.prune=[0, 0, 1]"]

    return of


def test_killed_anywhere_and_started_again_equals_undisturbed_bit_for_bit(command, tmp_path):
    registry = tmp_path / "registry"
    assert subprocess.run(command("left-alone"), capture_output=True, check=False).returncode == 0
    kept = []
    for _ in range(KILLS):
        before = stages(registry)
        process = subprocess.Popen(command("killed"), stderr=subprocess.DEVNULL)
        while process.poll() is None and len(stages(registry)) < len(before) + 3:
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.05))
        process.kill()
        process.wait()
        kept.append(len(stages(registry)))
    assert kept == sorted(kept)
    assert kept[-1] >= 3 * KILLS
    done = subprocess.run(command("killed"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stages of the estimation were done already" in done.stdout
    first, second = (registry / name / "versions" / "1" / "ngram.bin" for name in ("left-alone", "killed"))
    assert first.read_bytes() == second.read_bytes()


def stages(registry: Path) -> list[Path]:
    """The stages that are whole."""
    return list(registry.glob(".runs/killed/estimation/stage-*"))
