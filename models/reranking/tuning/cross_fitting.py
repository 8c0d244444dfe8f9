"""Tuning with every list held out once, so that the gain told is one that new lists may have."""

from collections.abc import Callable

import numpy as np

from models.errors import InvalidInputError
from models.reranking.metrics.significance import BootstrapTest
from models.reranking.tuning.comparing import compare_choices, is_improvement
from models.reranking.tuning.features import TuningData
from models.reranking.tuning.fitting import FIRST_PASS_WEIGHTS, FittedWeights, fit_feature_weights
from models.reranking.tuning.outcome import Decision, FoldOutcome, TuningOutcome
from models.reranking.tuning.posterior_scale import fit_posterior_scale
from models.reranking.tuning.problem import Floats, Ints, TuningProblem
from models.reranking.tuning.settings import TuningSettings
from models.reranking.tuning.steps import Steps


def cross_fit(
    data: TuningData, folds: Ints, settings: TuningSettings, *, searched: Callable[[], None] = lambda: None
) -> Steps[TuningOutcome]:
    """Find weights, and tell whether they are worth having.

    Weights are found as many times as there are folds, each time without one, whose lists they then re-rank; and
    once more on all lists: those are the answer, if what was held out got better by more than chance.

    Args:
        data: lists and their features.
        folds: of each list, from 0 [N].
        settings: how to look.
        searched: called whenever a resample has been searched, at most `settings.num_resamples` times.

    Raises:
        InvalidInputError: there are fewer lists than folds, or a fold is empty.
    """
    problem = data.problem
    _check_folds(folds, settings)
    held_out = problem.first_pass().copy()
    outcomes = []
    for fold in range(settings.folds):
        inside, outside = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        fitted = yield from fit_feature_weights(data.shapes, outside, settings, searched=searched)
        shaped = data.shapes[fitted.shape].problem
        one = shaped.of(inside)
        chosen = fitted.chosen(one)
        held_out[inside] += chosen - one.first_pass()
        outcomes.append(_fold_outcome(one, chosen, shaped.of(outside), fitted, inside))
        yield
    fitted = yield from fit_feature_weights(
        data.shapes, np.arange(problem.num_lists), settings, searched=searched
    )
    first, oracle = problem.first_pass(), problem.oracle()
    test = yield from compare_choices(
        problem, first, held_out, samples=settings.bootstrap_samples, seed=settings.seed
    )
    decision, reason = _accept_or_reject(problem, test, fitted, settings)
    fitted = fitted if decision == "tuned" else FIRST_PASS_WEIGHTS
    posteriors = yield from fit_posterior_scale(
        data.shapes[fitted.shape].problem, candidate_totals(data, fitted)
    )
    baseline, tried = problem.score(first), problem.score(held_out)
    return TuningOutcome(
        decision=decision,
        reason=reason,
        fitted=fitted,
        folds=tuple(outcomes),
        first=first,
        held_out=held_out,
        oracle=oracle,
        baseline=baseline,
        tried=tried,
        tuned=tried if decision == "tuned" else baseline,
        best=problem.score(oracle),
        worst=problem.score(problem.anti_oracle()),
        significance=test,
        posteriors=posteriors,
    )


def _fold_outcome(
    inside: TuningProblem, chosen: Ints, outside: TuningProblem, fitted: FittedWeights, lists: Ints
) -> FoldOutcome:
    return FoldOutcome(
        fitted,
        lists,
        baseline=inside.score(inside.first_pass()),
        tuned=inside.score(chosen),
        oracle=inside.score(inside.oracle()),
        in_sample=outside.score(fitted.chosen(outside)),
    )


def _accept_or_reject(
    problem: TuningProblem, test: BootstrapTest, fitted: FittedWeights, settings: TuningSettings
) -> tuple[Decision, str]:
    name = problem.metric.name.upper()
    told = f"on lists held out, {name} changes by {test.difference:+.2f} (p = {test.p_value:.3f})"
    if not is_improvement(problem, test):
        return "first_pass", f"Keep the first pass: {told}, which is not better."
    if test.p_value > settings.max_p_value:
        return (
            "first_pass",
            f"Keep the first pass: {told}, which may be chance (p > {settings.max_p_value:g}).",
        )
    if fitted.weights is None:
        return "first_pass", f"Keep the first pass: {told}, but all lists together bear no weights out."
    return "tuned", f"Use the weights: {told}."


def candidate_totals(data: TuningData, fitted: FittedWeights) -> Floats:
    """The totals of all candidates [C]; of the first pass, minus the place in the list."""
    problem = data.shapes[fitted.shape].problem
    if fitted.weights is None:
        places = np.arange(len(problem.features)) - np.repeat(problem.first_pass(), np.diff(problem.offsets))
        return -places.astype(np.float64)
    totals: Floats = problem.features @ fitted.weights
    return totals


def _check_folds(folds: Ints, settings: TuningSettings) -> None:
    sizes = np.bincount(folds, minlength=settings.folds)
    if len(sizes) > settings.folds or not sizes.all():
        raise InvalidInputError(
            f"folds is {settings.folds}, but {len(folds)} lists with {int((sizes > 0).sum())} different "
            "references or sets of them cannot fill so many: give more lists, or fewer folds",
            parameter="folds",
        )
