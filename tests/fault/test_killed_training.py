"""SIGKILL during training, publishing and out-of-core estimation: a clean registry, identical models."""

import itertools

import pytest

from tests.fault.forked import report_of

SEED = 9


@pytest.fixture(scope="module")
def trainer_report(tmp_path_factory):
    return report_of("kill_trainer", tmp_path_factory.mktemp("killed"), SEED)


def test_trainers_were_killed(trainer_report):
    """A few may have finished before."""
    assert trainer_report["killed"] >= 10


def test_every_listed_version_loads_and_none_is_lost_after_every_kill(trainer_report):
    """Every check loads all listed versions."""
    assert trainer_report["versions"][0] == [1]
    for before, after in itertools.pairwise(trainer_report["versions"]):
        assert after in (before, [*before, len(before) + 1])


def test_the_next_run_publishes_and_clears_what_the_killed_ones_left(trainer_report):
    *_, before, last = trainer_report["versions"]
    assert last == [*before, len(before) + 1]
    assert trainer_report["left"] == []


@pytest.fixture(scope="module")
def network_report(tmp_path_factory):
    return report_of("kill_network_trainer", tmp_path_factory.mktemp("killed"), SEED)


def test_the_saved_state_is_whole_after_every_kill_and_only_goes_forward(network_report):
    assert network_report["killed"] >= 3
    assert network_report["steps"][0] >= 1
    assert network_report["steps"] == sorted(network_report["steps"])


def test_killed_anywhere_and_resumed_equals_uninterrupted_bit_for_bit(network_report):
    differing, compared = network_report["differing"]
    assert differing == []
    assert compared > 5


@pytest.fixture(scope="module")
def estimation_report(tmp_path_factory):
    return report_of("kill_estimation", tmp_path_factory.mktemp("killed"), SEED)


def test_stages_that_were_finished_are_kept_whatever_happens(estimation_report):
    assert estimation_report["killed"] == len(estimation_report["kept"])
    assert estimation_report["kept"] == sorted(estimation_report["kept"])
    assert estimation_report["kept"][-1] >= 3 * len(estimation_report["kept"])
    assert "stages of the estimation were already complete" in estimation_report["said"]


def test_killed_anywhere_and_started_again_equals_undisturbed_bit_for_bit(estimation_report):
    assert estimation_report["equal"]
