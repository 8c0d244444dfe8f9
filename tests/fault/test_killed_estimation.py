"""SIGKILL an estimation past memory between and within its stages: the next run's model is the same to the bit."""

import pytest

from tests.fault.forked import report_of

SEED = 9


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return report_of("kill_estimation", tmp_path_factory.mktemp("killed"), SEED)


def test_stages_that_were_finished_are_kept_whatever_happens(report):
    assert report["killed"] == len(report["kept"])
    assert report["kept"] == sorted(report["kept"])
    assert report["kept"][-1] >= 3 * len(report["kept"])
    assert "stages of the estimation were done already" in report["said"]


def test_killed_anywhere_and_started_again_equals_undisturbed_bit_for_bit(report):
    assert report["equal"]
