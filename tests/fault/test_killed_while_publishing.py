"""SIGKILL at every file operation of publishing: the registry lists and loads cleanly."""

import itertools
import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("registry")
    command = [sys.executable, "-m", "tests.fault.kill_publisher", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_there_were_many_places_to_die_at(report):
    assert len(report["publish"]) > 15
    assert len(report["alias"]) > 5


def test_no_version_is_lost_and_each_is_whole_after_every_kill(report):
    """Each listed version was verified; their number never falls, and rises by one at a time."""
    counts = [1, *(versions for versions, _ in report["publish"])]
    assert all(after - before in {0, 1} for before, after in itertools.pairwise(counts))
    assert counts[-1] > 1


def test_the_champion_is_the_old_or_the_new_version_after_every_kill(report):
    champions = {champion for _, champion in report["alias"]}
    assert champions <= {1, report["alias"][-1][0]}
    assert report["alias"][-1][1] == report["alias"][-1][0]


def test_what_killed_publishers_left_behind_was_cleared_by_the_last_one(report):
    assert report["left"] == []
