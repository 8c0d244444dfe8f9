"""SIGKILL the trainer while it trains and while it publishes: the registry lists and loads cleanly."""

import random
import subprocess
import sys
import time

import pytest

from models.checkpoint.load import load_checkpoint
from models.checkpoint.local import LocalRegistry

KILLS_ANYWHERE = 5
KILLS_WHILE_PUBLISHING = 12


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """Starts a training run that publishes `m`, after one run that was left in peace."""
    folder = tmp_path_factory.mktemp("killed")
    corpus = folder / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog sat on a log\n" * 50)
    command = [sys.executable, "-m", "service.cli", "train", "ngram", "--name", "m"]
    command += ["--corpus", str(corpus), "--registry", str(folder / "registry"), "--set", "ngram.order=2"]

    def start():
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    began = time.monotonic()
    assert start().wait() == 0
    return start, LocalRegistry(folder / "registry"), time.monotonic() - began


def assert_clean(registry: LocalRegistry, at_least: int) -> int:
    """Every listed version loads; none that was there is gone. The number of versions."""
    versions = registry.versions("m")
    assert registry.models() == ["m"]
    assert versions == list(range(1, len(versions) + 1))
    assert len(versions) >= at_least
    for number in versions:
        load_checkpoint(registry.resolve(f"m@{number}").path)
    return len(versions)


def test_killed_at_any_time(trainer):
    start, registry, seconds = trainer
    count = assert_clean(registry, 1)
    for _ in range(KILLS_ANYWHERE):
        process = start()
        time.sleep(random.uniform(0, seconds))
        process.kill()
        process.wait()
        count = assert_clean(registry, count)


def test_killed_while_it_publishes(trainer):
    start, registry, _ = trainer
    versions = registry.root / "m" / "versions"
    count = assert_clean(registry, 1)
    caught = 0
    for _ in range(KILLS_WHILE_PUBLISHING):
        before = {p.name for p in versions.iterdir()}
        process = start()
        while process.poll() is None and not {p.name for p in versions.iterdir()} - before:
            time.sleep(0.0005)
        time.sleep(random.uniform(0, 0.04))
        process.kill()
        caught += process.wait() != 0
        count = assert_clean(registry, count)
    assert caught > 0


def test_the_next_run_publishes_and_clears_what_the_killed_ones_left(trainer):
    start, registry, _ = trainer
    count = assert_clean(registry, 1)
    assert start().wait() == 0
    assert assert_clean(registry, count) == count + 1
    assert [p.name for p in (registry.root / "m" / "versions").iterdir() if p.name.startswith(".")] == []
