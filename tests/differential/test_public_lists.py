"""The public n-best lists: their published error rates through all formats, and tuning on them."""

from dataclasses import replace

import numpy as np
import pytest

from models.calls import run_to_completion
from models.files import collapse_spaces
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.reader import read_bytes, read_lists
from models.reranking.metrics import make_metric, summarise_lists
from models.reranking.tuning.cross_fitting import cross_fit, tuning_data
from models.reranking.tuning.fitting import TuningSettings
from models.scoring.candidate_features import ScoringModels
from service.local.ask import UNLIMITED
from service.operations.tune import TuneSettings, tune_and_evaluate
from tests.support.nbest_lists import RECOGNISED, recognised, words_alone, words_in_steps
from tests.support.written_lists import format_lists

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("file", "lists", "first", "oracle"),
    [("common-voice.json", 2000, 15.44, 11.32), ("librispeech-clean.json", 2620, 1.79, 0.89)],
)
def test_hyporadises_error_rates(data_dir, file, lists, first, oracle):
    figures = summarise_lists(read_lists(data_dir / "nbest" / file))
    assert (figures["lists"], figures["lists_with_references"], figures["duplicates"]) == (lists, lists, 0)
    assert round(figures["first_wer"], 2) == first
    assert round(figures["oracle_wer"], 2) == oracle


def test_translations_go_through_moses_and_jsonl(data_dir):
    lists = list(read_lists(data_dir / "nbest" / "mt-de-en.jsonl.xz"))
    assert [len(one.candidates) for one in lists] == [9] * 1984
    assert list(read_bytes("".join(format_lists(lists, "jsonl")).encode(), "jsonl")) == lists
    moses = read_bytes("".join(format_lists(lists, "moses")).encode(), "moses")
    spaced_once = [[replace(c, text=collapse_spaces(c.text)) for c in one.candidates] for one in lists]
    assert [list(one.candidates) for one in moses] == spaced_once


QUICK = TuningSettings(restarts=2, resamples=6, bootstrap_samples=400)
LISTS = 1200
FEATURES = ("rank", "rank:log", "words", "consensus:wer", "consensus:chrf")
"""Features that need no model scores."""


def made(lists):
    return run_to_completion(tuning_data(lists, words_alone(lists), make_metric("wer"), features=FEATURES))


@pytest.fixture(scope="module", params=RECOGNISED)
def recognised_lists(request, data_dir):
    entries = recognised(data_dir, request.param)[:LISTS]
    return [CandidateList(None, "", tuple(map(Candidate, one.texts)), (one.reference,)) for one in entries]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_half_held_out_is_never_worse_than_its_first_pass(recognised_lists, seed):
    order = np.random.default_rng(seed).permutation(len(recognised_lists))
    inside, outside = ([recognised_lists[i] for i in some] for some in (order[::2], order[1::2]))
    outcome = run_to_completion(cross_fit(made(inside), np.arange(len(inside)) % 2, QUICK))
    rest = made(outside).problem
    lost = rest.score(outcome.fitted.chosen(rest)) - rest.score(rest.first_pass())
    assert lost <= 0.05


def test_padding_copies_are_dropped_and_the_first_pass_stays_what_it_was(recognised_lists):
    data = made(recognised_lists)
    assert data.texts(data.problem.first_pass()) == [one.candidates[0].text for one in recognised_lists]
    distinct = sum(len({c.text for c in one.candidates}) for one in recognised_lists)
    assert len(data.problem.features) == distinct


def test_corrections_of_flight_enquiries_beat_the_best_candidates(data_dir):
    lists = list(read_lists(data_dir / "nbest" / "flights.json"))
    settings = TuneSettings(
        restarts=2, resamples=6, bootstrap_samples=400, length_exponents=[0.0], corrections=True
    )
    models = ScoringModels((), ())
    tuned, _ = run_to_completion(tune_and_evaluate(settings, models, lists, words_in_steps, UNLIMITED))
    assert tuned.figures.decision == "tuned"
    assert tuned.figures.tried < 4.5  # the best candidates have 5.06
