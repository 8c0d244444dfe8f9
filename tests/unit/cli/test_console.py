"""What the command line prints for people."""

from pathlib import Path
from types import SimpleNamespace

from service.console.evaluation import show_figures, show_training, show_tuning


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
    """What stands in brackets was left out, or ended the command once the model was published."""
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
