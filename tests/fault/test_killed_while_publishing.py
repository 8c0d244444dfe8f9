"""SIGKILL at every file operation of publishing, promoting, deleting and fetching: all that is listed is whole."""

import itertools

import pytest

from tests.fault.forked import report_of
from tests.fault.kill_publisher import PUBLISHED


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return report_of("kill_publisher", tmp_path_factory.mktemp("killed"))


def test_there_were_many_places_to_die_at(report):
    assert len(report["publish"]) > 15
    assert len(report["alias"]) > 5
    assert len(report["delete"]) > 5
    assert len(report["fetch"]) > 15


def test_no_version_is_lost_and_each_is_whole_after_every_kill(report):
    """Each listed version was verified; their number never falls, and rises by one at a time."""
    counts = [PUBLISHED, *(versions for versions, _ in report["publish"])]
    assert all(after - before in {0, 1} for before, after in itertools.pairwise(counts))
    assert counts[-1] > PUBLISHED


def test_the_champion_is_the_old_or_the_new_version_after_every_kill(report):
    champions = {champion for _, champion in report["alias"]}
    assert champions <= {1, report["alias"][-1][0]}
    assert report["alias"][-1][1] == report["alias"][-1][0]


def test_what_killed_publishers_left_behind_was_cleared_by_the_last_one(report):
    assert report["left"] == []


def test_a_version_is_there_whole_or_deleted_after_every_kill(report):
    """It is deleted by its renaming; what a killed deleter left of its files a sweep removes."""
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
