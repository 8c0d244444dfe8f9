"""SIGKILL the trainer of networks, and resume: the weights are those of a run that was left in peace."""

import pytest

from tests.fault.forked import report_of

SEED = 9


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return report_of("kill_network_trainer", tmp_path_factory.mktemp("killed"), SEED)


def test_the_saved_state_is_whole_after_every_kill_and_only_goes_forward(report):
    assert report["killed"] >= 3
    assert report["steps"][0] >= 1
    assert report["steps"] == sorted(report["steps"])


def test_killed_anywhere_and_resumed_equals_uninterrupted_bit_for_bit(report):
    differing, compared = report["differing"]
    assert differing == []
    assert compared > 5
