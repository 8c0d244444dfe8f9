"""Tuning on public lists of a recogniser: what was kept from it does not pay."""

import numpy as np
import pytest

from models.reranking.candidates import Candidate, CandidateList, run_steps
from models.reranking.metrics import make_metric
from models.reranking.tuning.cross_fitting import cross_fit, tuning_data
from models.reranking.tuning.fitting import TuningSettings
from tests.nbest_data import RECOGNISED, recognised
from tests.tuning_problems import words_alone

pytestmark = pytest.mark.data
QUICK = TuningSettings(restarts=2, resamples=6, bootstrap_samples=400)
LISTS = 1200
FEATURES = ("rank", "rank:log", "words", "consensus:wer", "consensus:chrf")
"""What can be told of lists without scores."""


def made(lists):
    return run_steps(tuning_data(lists, words_alone(lists), make_metric("wer"), features=FEATURES))


@pytest.fixture(scope="module", params=RECOGNISED)
def lists(request, data_dir):
    entries = recognised(data_dir, request.param)[:LISTS]
    return [CandidateList(None, "", tuple(map(Candidate, one.texts)), (one.reference,)) for one in entries]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_half_held_out_is_never_worse_than_its_first_pass(lists, seed):
    order = np.random.default_rng(seed).permutation(len(lists))
    inside, outside = ([lists[i] for i in some] for some in (order[::2], order[1::2]))
    outcome = run_steps(cross_fit(made(inside), np.arange(len(inside)) % 2, QUICK))
    rest = made(outside).problem
    lost = rest.score(outcome.fitted.chosen(rest)) - rest.score(rest.first_pass())
    assert lost <= 0.05


def test_padding_copies_are_dropped_and_the_first_pass_stays_what_it_was(lists):
    data = made(lists)
    assert data.texts(data.problem.first_pass()) == [one.candidates[0].text for one in lists]
    distinct = sum(len({c.text for c in one.candidates}) for one in lists)
    assert len(data.problem.features) == distinct
