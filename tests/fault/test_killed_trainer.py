"""SIGKILL the trainer while it trains and while it publishes: the registry lists and loads cleanly."""

import itertools

import pytest

from tests.fault.forked import report_of

SEED = 9


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return report_of("kill_trainer", tmp_path_factory.mktemp("killed"), SEED)


def test_trainers_were_killed(report):
    """A few may have been through already."""
    assert report["killed"] >= 10


def test_every_listed_version_loads_and_none_is_lost_after_every_kill(report):
    """Each look has loaded all it lists."""
    assert report["versions"][0] == [1]
    for before, after in itertools.pairwise(report["versions"]):
        assert after in (before, [*before, len(before) + 1])


def test_the_next_run_publishes_and_clears_what_the_killed_ones_left(report):
    *_, before, last = report["versions"]
    assert last == [*before, len(before) + 1]
    assert report["left"] == []
