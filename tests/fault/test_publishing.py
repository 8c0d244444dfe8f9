"""SIGKILL at every file operation of publishing; four concurrent publishers and a watcher."""

import itertools
import json
import os
import subprocess
import sys

import pytest

from models.checkpoint.registry import open_registry
from tests.fault.forked import report_of
from tests.fault.kill_publisher import PUBLISHED
from tests.support.object_stores import s3_server


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return report_of("kill_publisher", tmp_path_factory.mktemp("killed"))


def test_there_were_many_places_to_die_at(report):
    assert len(report["publish"]) > 15
    assert len(report["alias"]) > 5
    assert len(report["delete"]) > 5
    assert len(report["fetch"]) > 15


def test_no_version_is_lost_and_each_is_whole_after_every_kill(report):
    """Each listed version is verified; their number never falls, and rises by one at a time."""
    counts = [PUBLISHED, *(versions for versions, _ in report["publish"])]
    assert all(after - before in {0, 1} for before, after in itertools.pairwise(counts))
    assert counts[-1] > PUBLISHED


def test_the_champion_is_the_old_or_the_new_version_after_every_kill(report):
    champions = {champion for _, champion in report["alias"]}
    assert champions <= {1, report["alias"][-1][0]}
    assert report["alias"][-1][1] == report["alias"][-1][0]


def test_leftovers_of_killed_publishers_are_removed_by_the_next(report):
    assert report["left"] == []


def test_a_version_is_there_whole_or_deleted_after_every_kill(report):
    """Renaming deletes it; a sweep removes the files that a killed deleter leaves."""
    counts = [report["alias"][-1][0], *(versions for versions, _ in report["delete"])]
    assert all(before - after in {0, 1} for before, after in itertools.pairwise(counts))
    assert counts[-1] < counts[0]
    assert report["swept"] >= 1
    assert report["in tombstones"] == []


def test_a_fetched_version_is_whole_or_not_there_after_every_kill(report):
    *there, [left] = report["fetch"]
    assert there == sorted(there)
    assert (there[0], there[-1]) == ([0], [1])
    assert left == 0


PUBLISHERS, VERSIONS = 4, 200


@pytest.fixture(scope="module", params=["folder", "s3"])
def outcome(request, tmp_path_factory):
    """Return the publishers' results, the watcher's result, and the final versions."""
    folder = tmp_path_factory.mktemp("publishers")
    with s3_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        address = folder / "registry" if request.param == "folder" else server.make_bucket("publishers")
        stop = folder / "stop"
        watcher = started("watch", address, folder / "watcher", stop)
        each = VERSIONS // PUBLISHERS
        publishers = [
            started("publish", address, folder / f"cache-{number}", each, number * each)
            for number in range(PUBLISHERS)
        ]
        published = [told(publisher) for publisher in publishers]
        stop.touch()
        there = open_registry(address, cache=folder / "cache").versions("m")
        yield published, told(watcher), there


def started(*arguments):
    command = [sys.executable, "-m", "tests.fault.registry_processes", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ.copy())  # noqa: TID251 - it is passed on


def told(process):
    output, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(output)


def test_every_publisher_got_a_number_of_its_own_each_time(outcome):
    published, _, there = outcome
    numbers = sorted(int(number) for seeds in published for number in seeds)
    assert numbers == there == list(range(1, VERSIONS + 1))


def test_concurrently_published_versions_are_loaded_unchanged(outcome):
    published, watched, _ = outcome
    seeds = {number: seed for told in published for number, seed in told.items()}
    assert watched["seen"] == seeds
    assert sorted(seeds.values()) == list(range(VERSIONS))


def test_no_version_was_ever_seen_in_part(outcome):
    assert outcome[1]["partial"] == []
