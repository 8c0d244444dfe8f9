"""Three minutes of the benchmarks' twenty-minute soak: nothing leaks, no reply is wrong; a leak is detected.

At first, memory grows as models and caches are used for the first time, beside other tests for longer than three
minutes. So the leak that has to be detected is large; the benchmark finds smaller ones.
"""

import json
import shutil
import subprocess
import sys

import pytest

from tests.support.services import ROOT

pytestmark = pytest.mark.long

SCRIPT = ROOT / "tests" / "benchmarks" / "bench_soak.py"
LEAK_KIB = 128


def started(folder, registry, *options):
    """Start a soak with a copy of a registry."""
    shutil.copytree(registry, folder / "registry")
    command = [sys.executable, str(SCRIPT), "--minutes", "3", "--rate", "8", "--out", str(folder)]
    command += ["--registry", str(folder / "registry"), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def soaks(tmp_path_factory):
    """Return the soak results of a service, and of one that leaks with every request; both run at once to save time."""
    folder = tmp_path_factory.mktemp("soak")
    models = ["train", "quickstart", "--name", "mixture", "--registry", str(folder / "registry")]
    hasty = [*models, "--set", "train.max_steps=5", "--set", "mixture.drop_unused=false"]
    subprocess.run([sys.executable, "-m", "service.cli", *hasty], check=True, capture_output=True, cwd=ROOT)
    leak = ("--leak-kib", str(LEAK_KIB))
    working = {
        name: started(folder / name, folder / "registry", *options)
        for name, options in (("honest", ()), ("leaking", leak))
    }
    try:
        said = {name: process.communicate(timeout=480)[0] for name, process in working.items()}
    finally:
        for process in working.values():
            process.terminate()  # it stops its service, too
    for name, process in working.items():
        assert process.returncode in {0, 1}, said[name]
        assert (folder / name / "soak.png").stat().st_size > 10_000
    return {
        name: json.loads((folder / name / "soak.json").read_text()) | {"told": said[name]} for name in said
    }


def test_nothing_leaks_under_mixed_traffic_while_versions_change(soaks):
    found = soaks["honest"]
    assert found["swaps"] >= 3
    assert sum(found["requests"].values()) > 240
    assert found["leaks"] == [], found["told"]


def test_a_leak_is_found_out(soaks):
    assert soaks["leaking"]["leaks"] == ["memory"], soaks["leaking"]["told"]
