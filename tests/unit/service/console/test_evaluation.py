"""Console output of evaluation and tuning progress."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from service.console.evaluation import TuningProgress, show_figures, show_training, show_tuning


def test_the_figures_of_an_n_gram_model_end_with_its_hit_rates(capsys):
    hits = [
        {"order": 1, "tokens": 1500, "share": 0.75, "logprob": None, "perplexity": None},
        {"order": 2, "tokens": 500, "share": 0.25, "logprob": -2.0, "perplexity": 7.389},
        {"order": 3, "tokens": 0, "share": 0.0, "logprob": None, "perplexity": None},
    ]
    show_figures({"model": "m@1", "perplexity": None, "hit_rates": hits})
    figures, rates = capsys.readouterr().out.split("longest n-gram found")
    assert "infinite" in figures
    assert [line.split()[-1] for line in rates.splitlines() if "order" in line] == [
        "infinite",
        "7.39",
        "0.0%",
    ]


def test_other_models_have_none(capsys):
    show_figures({"model": "m@1", "perplexity": 2.5})
    assert "n-gram" not in capsys.readouterr().out


def test_paths_are_no_markup(capsys):
    """Regression: text in brackets was omitted, or failed the command after the model was published."""
    show_training({"model": "m@1", "path": "/data/[/old]/[new]", "seconds": 1.0, "notes": []})
    assert "in /data/[/old]/[new];" in capsys.readouterr().out


def test_names_of_features_are_no_markup(capsys):
    scores = SimpleNamespace(lists=2, difference=0.0, low=0.0, high=0.0, p_value=1.0)
    reply = SimpleNamespace(
        metric="wer",
        signature="s",
        reason="better by am[/x]",
        folds=[],
        features=["am[/x]"],
        weights={"am[/x]": 0.5},
        length_exponent=0.0,
        posterior_scale=1.0,
        ignored_features=["b[c]"],
        profile={},
        counts=scores,
        significance=scores,
        baseline=2.0,
        tried=1.0,
        oracle=0.5,
    )
    show_tuning(reply, None, Path("[d]"))
    told = capsys.readouterr().out
    for name in ("am[/x]", "by am[/x]", "b[c]", "[d]/report.html"):
        assert name in told


@pytest.fixture
def clock(monkeypatch):
    """Clock that tests set."""
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
    with TuningProgress() as progress:
        progress("seeking weights", 0, 4)
        clock[0] = 1.0
        progress("seeking weights", 2, 4)
    assert capsys.readouterr().err == "\r\x1b[Kseeking weights: 50%, 1 s left\r\x1b[K"
