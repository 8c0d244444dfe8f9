"""The report page of artificial records: content, omissions, and no external resources."""

import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from models.checkpoint.load import CheckpointDescription
from training.model_card import model_card_files
from training.report import gate_picture, gradient_picture, history_pictures, report_page

FIGURES = {
    "tokens": 1000,
    "oov": 25,
    "perplexity": 123.4,
    "perplexity_without_oov": 99.0,
    "word_perplexity": 150.0,
    "bits_per_byte": 1.5,
}
DIAGNOSTICS = {
    "gradient_by_lag": [1.0, 0.5, None, 0.0, 1e-9],
    "gate_saturation": [{"layer": 1, "gate": "forget", "low": 0.25, "high": 0.5}],
}
METRICS = {"valid": FIGURES, "test": {**FIGURES, "word_perplexity": None}, "stopped": "epochs"}
RECIPE = {
    "family": "neural",
    "seed": 7,
    "neural": {"cell": "lstm", "tied": True},
    "train": {"max_steps": None},
}
SECTIONS = ["Held-out figures", "Training", "Inside the network", "Recipe"]


def records(count=5, **fields):
    """Training records with a subset of the fields."""
    return [
        SimpleNamespace(
            **{
                "step": 10 * k,
                "epoch": k // 3,
                "tokens": 1000 * k,
                "seconds": 30.0 * k,
                "train_loss": 6.0 - 0.3 * k,
                "valid_perplexity": 300.0 / k if k % 2 else None,
                "learning_rate": 1e-3,
                "grad_norm": 2.0,
                "clipped_norm": 1.0,
                "tokens_per_second": 5000.0,
                **fields,
            }
        )
        for k in range(1, count + 1)
    ]


def page(metrics=METRICS, history=None, name="m", provenance=None):
    given = {"recipe": RECIPE, "seconds": 150.0} if provenance is None else provenance
    history = records() if history is None else history
    return report_page(name, "An LSTM.", metrics, given, history).decode()


def titles(pictures):
    return [re.search(r'aria-label="([^"]*)"', picture.svg)[1] for picture in pictures]


class Checker(HTMLParser):
    """Parser that checks the nesting of elements and records loaded resources and ids."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.ids = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self._remember(attributes)
        if tag not in {"meta", "link", "img", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, _, attributes):
        self._remember(attributes)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def _remember(self, attributes):
        for name, value in attributes:
            if name in {"src", "href", "xlink:href"}:
                self.loads.append(value)
            if name == "id":
                self.ids.append(value)


def test_the_page_is_whole_and_loads_nothing():
    text = page({**METRICS, "diagnostics": DIAGNOSTICS})
    checked = Checker(text)
    assert checked.open == []
    assert {link[0] for link in checked.loads} == {"#"}
    assert {link[1:] for link in checked.loads} <= set(checked.ids)
    assert "url(http" not in text
    assert "@import" not in text
    assert "<script" not in text


def test_the_page_has_every_section_and_is_for_light_and_dark_and_phones():
    text = page({**METRICS, "diagnostics": DIAGNOSTICS})
    assert re.findall("<h2>(.*?)</h2>", text) == SECTIONS
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert "<td>max_steps</td><td>none</td>" in text
    assert "2.5 min" in text


def test_pictures_take_all_their_colours_from_the_page():
    pictures = [*history_pictures(records()), gradient_picture("a", [1, 0.1])]
    pictures.append(gate_picture(DIAGNOSTICS["gate_saturation"]))
    for picture in pictures:
        assert Checker(picture.svg).open == []
        assert re.findall(r"#[0-9a-f]{6}\b", picture.svg) == []
        assert "var(--accent)" in picture.svg


def test_the_history_is_five_pictures():
    assert titles(history_pictures(records())) == [
        "Perplexity over time",
        "Perplexity over tokens",
        "Learning rate",
        "Norm of the gradient",
        "Throughput",
    ]


@pytest.mark.parametrize("lacking", ["left out", "None"])
def test_fields_that_records_lack_are_left_out(lacking):
    history = records(clipped_norm=None, tokens_per_second=None)
    for record in history if lacking == "left out" else ():
        del record.clipped_norm, record.tokens_per_second
    *_, norm = history_pictures(history)
    assert titles([norm]) == ["Norm of the gradient"]
    assert ">after</text>" not in norm.svg
    assert ">after</text>" in history_pictures(records())[3].svg


def test_a_record_without_a_figure_is_a_gap_in_its_curve():
    history = records()
    history[2].tokens_per_second = None
    *_, throughput = history_pictures(history)
    assert titles([throughput]) == ["Throughput"]
    whole = history_pictures(records())[-1].svg
    assert throughput.svg.count("M ") == whole.count("M ") + 1


def test_a_run_that_was_never_validated_has_its_training_curve():
    first, *_ = history_pictures(records(valid_perplexity=None))
    assert ">validation" not in first.svg
    assert ">validation, lowest 60.0</text>" in history_pictures(records())[0].svg
    assert ">training (smoothed)</text>" in first.svg


def test_without_history_or_diagnostics_their_sections_are_not_there():
    text = page({"valid": FIGURES}, history=[], provenance={})
    assert re.findall("<h2>(.*?)</h2>", text) == ["Held-out figures"]
    assert "<svg" not in text


def test_an_infinite_perplexity_and_odd_names_do_no_harm():
    text = page(name='<b> & "x"')
    assert "<h1>&lt;b&gt; &amp; &#34;x&#34;</h1>" in text
    assert '<td class="number">infinite</td>' in text


def test_lags_without_gradient_are_left_out():
    assert ">some</text>" in gradient_picture("some", [1.0, None, 0.01]).svg
    assert ">none at all</text>" not in gradient_picture("none at all", [None, 0.0]).svg


def card(family, histories):
    provenance = {"recipe": {**RECIPE, "tokenizer": {}, "mixture": {}}, "seed": 1, "seconds": 9.0}
    model = SimpleNamespace(family=family, num_parameters=10, vocabulary=range(30))
    description = CheckpointDescription("2026-01-01", METRICS, provenance, [], {})
    return model_card_files("m", model, "word", description, histories)


@pytest.mark.parametrize("family", ["lstm", "elman", "feed-forward", "mingru"])
def test_a_networks_card_links_its_report(family):
    files = card(family, {"lstm": records()})
    assert "(report.html)" in files["MODEL_CARD.md"].decode()
    assert files["report.html"].startswith(b"<!doctype html>")


def test_a_network_that_was_not_trained_here_has_none():
    files = card("lstm", {})
    assert "report.html" not in files
    assert "report.html" not in files["MODEL_CARD.md"].decode()
