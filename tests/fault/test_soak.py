"""Half a minute of the soak that the benchmarks take twenty of: nothing leaks, and no answer is wrong."""

import json
import subprocess
import sys

from tests.processes import ROOT


def test_nothing_leaks_under_mixed_traffic_while_versions_change(tmp_path):
    script = ROOT / "tests" / "benchmarks" / "bench_soak.py"
    models = ["train", "quickstart", "--name", "mixture", "--registry", str(tmp_path / "registry")]
    hasty = [*models, "--set", "train.max_steps=5"]
    subprocess.run([sys.executable, "-m", "service.cli", *hasty], check=True, capture_output=True, cwd=ROOT)
    command = [sys.executable, str(script), "--minutes", "0.5", "--rate", "8", "--out", str(tmp_path)]
    command += ["--registry", str(tmp_path / "registry")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in {0, 1}, done.stderr
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["swaps"] >= 3
    # memory is told apart from warming up in minutes, not seconds
    assert set(found["leaks"]) <= {"memory"}, done.stdout
    assert sum(found["requests"].values()) > 120
    assert (tmp_path / "soak.png").stat().st_size > 10_000
