"""Tuning with every list held out once."""

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.reranking.candidates import run_steps
from models.reranking.tuning.cross_fitting import candidate_totals, cross_fit
from models.reranking.tuning.fitting import TuningSettings
from tests.tuning_problems import data_of, informative, problem, uninformative

QUICK = TuningSettings(restarts=2, resamples=6, bootstrap_samples=200)


def outcome_of(one, folds=None, settings=QUICK):
    folds = np.arange(one.num_lists) % settings.folds if folds is None else folds
    return run_steps(cross_fit(data_of(one), folds, settings))


def test_weights_are_used_where_they_help_on_lists_held_out():
    outcome = outcome_of(informative())
    assert outcome.decision == "tuned"
    assert outcome.best <= outcome.tuned < outcome.baseline - 5 < outcome.worst
    assert outcome.tuned == outcome.tried
    assert outcome.significance.difference == pytest.approx(outcome.tried - outcome.baseline)


def test_the_first_pass_is_kept_where_nothing_helps():
    outcome = outcome_of(uninformative())
    assert (outcome.decision, outcome.fitted.weights) == ("first_pass", None)
    assert outcome.reason.startswith("Keep the first pass")
    assert outcome.tuned == outcome.baseline


def test_what_was_tried_is_told_where_the_first_pass_is_kept():
    outcome = outcome_of(informative(num_lists=20, noise=6.0, seed=4))
    assert outcome.reason.endswith("which may be chance (p > 0.2).")
    assert outcome.tuned == outcome.baseline != outcome.tried
    assert outcome.significance.difference == pytest.approx(outcome.tried - outcome.baseline)


def test_every_resample_that_was_searched_is_told():
    told = []
    folds = np.arange(60) % 2
    run_steps(cross_fit(data_of(informative()), folds, QUICK, searched=lambda: told.append(1)))
    shapes = len(data_of(informative()).shapes)
    assert len(told) == (QUICK.folds + 1) * shapes * QUICK.resamples


def test_the_lists_of_a_fold_have_no_influence_on_its_own_weights():
    one, folds = informative(), np.arange(60) % 2
    changed = one.statistics.copy()
    changed[np.repeat(folds == 0, 5), 0] = 9 - changed[np.repeat(folds == 0, 5), 0]
    other = problem(changed[:, 0], one.features, [5] * 60, one.names)
    before, after = outcome_of(one, folds), outcome_of(other, folds)
    assert before.folds[0].fitted.weights.tolist() == after.folds[0].fitted.weights.tolist()
    assert not np.array_equal(before.folds[1].fitted.weights, after.folds[1].fitted.weights)


def test_each_list_is_re_ranked_by_the_weights_of_its_own_fold():
    one, folds = informative(), np.arange(60) % 3
    settings = TuningSettings(folds=3, restarts=2, resamples=6, bootstrap_samples=200)
    outcome = outcome_of(one, folds, settings)
    for number, fold in enumerate(outcome.folds):
        assert fold.lists.tolist() == np.flatnonzero(folds == number).tolist()
        chosen = one.chosen(fold.fitted.weights)
        assert outcome.held_out[fold.lists].tolist() == chosen[fold.lists].tolist()


def test_scores_of_folds_are_of_their_lists_alone():
    outcome = outcome_of(informative())
    assert np.mean([fold.baseline for fold in outcome.folds]) == pytest.approx(outcome.baseline)
    assert np.mean([fold.tuned for fold in outcome.folds]) == pytest.approx(outcome.tuned)


def test_a_gain_that_may_be_chance_is_not_believed():
    one = informative(num_lists=6, noise=4.0, seed=4)
    cautious = TuningSettings(restarts=2, resamples=6, bootstrap_samples=200, max_p_value=0.0)
    assert outcome_of(one, settings=cautious).decision == "first_pass"


@pytest.mark.parametrize("folds", [np.zeros(60, dtype=int), np.arange(60) % 3])
def test_folds_that_are_empty_or_too_many_are_refused(folds):
    with pytest.raises(InvalidInputError, match="folds is 2"):
        outcome_of(informative(), folds)


def test_totals_of_a_kept_first_pass_keep_its_order():
    one = uninformative(num_lists=2)
    kept = outcome_of(one).fitted
    assert candidate_totals(data_of(one), kept).tolist() == [0, -1, -2, -3, -4] * 2
