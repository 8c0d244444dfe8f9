"""The HTML report of a tuning run."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from models.calls import run_to_completion
from models.report import Picture
from models.reranking.candidates import Candidate, CandidateList
from models.scoring.candidate_features import ScoringModels
from service.local.ask import UNLIMITED
from service.local.tune_report import mark_errors, tuning_page
from service.operations.tune import TuneSettings, tune_and_evaluate
from tests.support.nbest_lists import words_in_steps

QUICK = TuneSettings(restarts=1, resamples=4, bootstrap_samples=200)


def lists(count=40):
    rng = np.random.default_rng(0)
    for number in range(count):
        reference = " ".join(f"<w{i}>" for i in rng.integers(9, size=3 + number % 7))
        wrong = " ".join(rng.permutation([*reference.split(), "x"]))
        order = rng.permutation(2)
        features = ({"good": 1.0 + 0.1 * rng.standard_normal()}, {"good": 0.0})
        both = [Candidate(t, f) for t, f in zip((reference, wrong), features, strict=True)]
        yield CandidateList(f"u{number}", "", tuple(both[i] for i in order), (reference,))


@pytest.fixture(scope="module", params=["wer", "chrf"])
def page(request):
    told = tuple(lists())
    settings = QUICK.model_copy(update={"metric": request.param})
    tuned, reply = run_to_completion(
        tune_and_evaluate(settings, ScoringModels((), ()), told, words_in_steps, UNLIMITED)
    )
    return tuning_page("A <b> file", tuned, reply).decode()


def test_the_page_tells_verdict_scores_weights_and_changes(page):
    for said in (
        "Use the weights",
        "No model was used",
        "oracle: the best",
        "<td>good</td>",
        "Improved lists",
    ):
        assert said in page
    assert "Worsened lists" not in page


def test_texts_and_titles_cannot_become_markup(page):
    assert "<h1>A &lt;b&gt; file</h1>" in page
    assert "&lt;w" in page
    assert not re.search(r"<w\d>", page)


def test_charts_are_whole_elements_in_the_pages_own_colours(page):
    charts = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    assert len(charts) == 4
    for one in charts:
        ET.fromstring(one.replace("xlink:href", "href"))  # noqa: S314 - our own output
        assert "var(--accent)" in one
        assert not re.search(r"#[0-9a-f]{6}\b", one)


def test_the_page_needs_nothing_from_elsewhere(page):
    assert not re.search(r"(src|href)=\"(?!#)", page)
    assert "url(http" not in page
    assert "prefers-color-scheme: dark" in page


def test_a_title_is_taken_as_it_stands():
    r"""Regression: a backslash in a feature name raised an error at the end; dollars rendered as a formula."""
    title = r"WER along the weight of \d $x$"
    svg = Picture(title, "", lambda axes: axes.plot([0, 1], [0, 1])).svg
    assert f'aria-label="{title}"' in svg
    assert f">{title}<" in svg


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the cat sat", "the cat sat"),
        ("the bat sat", "the <mark>bat</mark> sat"),
        ("the cat", "the cat <s>sat</s>"),
        ("the cat sat down", "the cat sat <mark>down</mark>"),
        ("", "<s>the</s> <s>cat</s> <s>sat</s>"),
    ],
)
def test_errors_are_shown_by_their_kind(text, shown):
    assert mark_errors(text, "the cat sat") == shown


def test_texts_cannot_become_markup():
    assert mark_errors("<b>&", "<i>") == "<mark>&lt;b&gt;&amp;</mark>"
