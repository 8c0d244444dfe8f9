"""What the command line prints for people."""

from service.console.evaluation import show_figures


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
