"""How far `gramophone tune` is."""

import pytest

from service.console.evaluation import TuningProgress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told."""
    now = [0.0]
    monkeypatch.setattr("service.console.evaluation.time.monotonic", lambda: now[0])
    return now


def test_the_time_left_is_told_every_ten_seconds(clock, capsys):
    progress = TuningProgress()
    for clock[0], done in ((0.0, 0), (5.0, 10), (12.0, 20), (15.0, 30), (30.0, 50)):
        progress("seeking weights", done, 80)
    assert capsys.readouterr().err.splitlines() == [
        "seeking weights: 25%, 36 s left",
        "seeking weights: 62%, 18 s left",
    ]


def test_each_kind_of_work_has_its_own_pace(clock, capsys):
    progress = TuningProgress()
    for what, clock[0], done in (("scoring lists", 0.0, 0), ("seeking", 100.0, 0), ("seeking", 110.0, 1)):
        progress(what, done, 4)
    assert capsys.readouterr().err == "seeking: 25%, 30 s left\n"


def test_on_a_terminal_the_line_moves_and_goes(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = TuningProgress()
    progress("seeking weights", 0, 4)
    clock[0] = 1.0
    progress("seeking weights", 2, 4)
    progress.finish()
    assert capsys.readouterr().err == "\r\x1b[Kseeking weights: 50%, 1 s left\r\x1b[K"
