"""Cross-fitted tuning, and the problem built from lists."""

from dataclasses import replace

import numpy as np
import pytest

from models.calls import run_to_completion
from models.errors import InputError
from models.reranking.features import ListFeatures
from models.reranking.metrics import make_metric
from models.reranking.ranking import LogLinearModel
from models.reranking.tuning.cross_fitting import candidate_totals, cross_fit, looks_like_mean, tuning_data
from models.reranking.tuning.fitting import TuningSettings
from models.reranking.tuning.mert import line_loss
from tests.support.nbest_lists import (
    candidate_list,
    data_of,
    informative,
    problem,
    uninformative,
    words_alone,
)

QUICK = TuningSettings(restarts=2, resamples=6, bootstrap_samples=200)


def outcome_of(one, folds=None, settings=QUICK):
    folds = np.arange(one.num_lists) % settings.folds if folds is None else folds
    return run_to_completion(cross_fit(data_of(one), folds, settings))


def test_weights_are_used_where_they_help_on_lists_held_out():
    figures = outcome_of(informative()).figures
    assert figures.decision == "tuned"
    assert figures.oracle <= figures.tuned < figures.baseline - 5 < figures.worst
    assert figures.tuned == figures.tried
    assert figures.significance.difference == pytest.approx(figures.tried - figures.baseline)


def test_the_first_pass_is_kept_where_nothing_helps():
    outcome = outcome_of(uninformative())
    figures = outcome.figures
    assert (figures.decision, outcome.fitted.weights) == ("first_pass", None)
    assert figures.weights == {"rank": 1.0}
    assert figures.reason.startswith("Keep the first pass")
    assert figures.tuned == figures.baseline


def test_figures_of_rejected_weights_are_reported():
    figures = outcome_of(informative(num_lists=20, noise=6.0, seed=4)).figures
    assert figures.reason.endswith("which may be chance (p > 0.2).")
    assert figures.tuned == figures.baseline != figures.tried
    assert figures.significance.difference == pytest.approx(figures.tried - figures.baseline)


def with_rare_gain(name):
    """400 lists of which 3 gain one error of about 5 each by the second feature: 0.15 % of the errors."""
    errors, features = [], []
    for number in range(400):
        gains = number < 3
        errors += [5, 4 if gains else 6]
        features += [[0.0, 0.0], [-1.0, 2.0 if gains else 0.0]]
    return problem(np.array(errors), np.array(features), [2] * 400, ("rank", name))


@pytest.mark.parametrize(
    ("feature", "max_p_value", "decision"),
    [("correction", 0.3, "first_pass"), ("am", 0.3, "tuned"), ("correction", 1.0, "tuned")],
)
def test_corrections_are_not_used_for_a_gain_below_one_percent_of_the_errors(feature, max_p_value, decision):
    settings = TuningSettings(restarts=2, resamples=6, bootstrap_samples=200, max_p_value=max_p_value)
    figures = outcome_of(with_rare_gain(feature), settings=settings).figures
    assert figures.tried < figures.baseline
    assert figures.decision == decision
    too_little = figures.reason.endswith("too little for corrections (less than 1% of the errors).")
    assert too_little == (decision == "first_pass")


def test_every_resample_that_was_searched_is_told():
    told = []
    folds = np.arange(60) % 2
    run_to_completion(cross_fit(data_of(informative()), folds, QUICK, searched=lambda: told.append(1)))
    shapes = len(data_of(informative()).shapes)
    assert len(told) == (QUICK.folds + 1) * shapes * QUICK.resamples


def test_the_lists_of_a_fold_have_no_influence_on_its_own_weights():
    one, folds = informative(), np.arange(60) % 2
    changed = one.statistics.copy()
    changed[np.repeat(folds == 0, 5), 0] = 9 - changed[np.repeat(folds == 0, 5), 0]
    other = problem(changed[:, 0], one.features, [5] * 60, one.names)
    before, after = (outcome_of(some, folds).figures.folds for some in (one, other))
    assert before[0].weights == after[0].weights
    assert before[1].weights != after[1].weights


def test_each_list_is_re_ranked_by_the_weights_of_its_own_fold():
    one, folds = informative(), np.arange(60) % 3
    settings = TuningSettings(folds=3, restarts=2, resamples=6, bootstrap_samples=200)
    outcome = outcome_of(one, folds, settings)
    for number, fold in enumerate(outcome.figures.folds):
        own = np.flatnonzero(folds == number)
        chosen = one.chosen(np.array([fold.weights.get(name, 0.0) for name in one.names]))
        assert fold.num_lists == len(own)
        assert outcome.held_out[own].tolist() == chosen[own].tolist()


def test_scores_of_folds_are_of_their_lists_alone():
    figures = outcome_of(informative()).figures
    assert np.mean([fold.baseline for fold in figures.folds]) == pytest.approx(figures.baseline)
    assert np.mean([fold.tuned for fold in figures.folds]) == pytest.approx(figures.tuned)


def test_a_gain_that_may_be_chance_is_not_believed():
    one = informative(num_lists=6, noise=4.0, seed=4)
    cautious = TuningSettings(restarts=2, resamples=6, bootstrap_samples=200, max_p_value=0.0)
    assert outcome_of(one, settings=cautious).figures.decision == "first_pass"


def test_totals_of_a_kept_first_pass_keep_its_order():
    one = uninformative(num_lists=2)
    kept = outcome_of(one).fitted
    assert candidate_totals(data_of(one), kept).tolist() == [0, -1, -2, -3, -4] * 2


WER = make_metric("wer")


def data(*lists, **options):
    told = [one for one in lists if one.references]
    return run_to_completion(tuning_data(lists, words_alone(told), WER, **options))


def test_copies_of_a_text_are_left_out_and_keep_no_rank():
    made = data(candidate_list("a", "b", "a", "c"), candidate_list("a"))
    assert made.candidate_indices.tolist() == [0, 1, 3, 0]
    assert made.problem.features[:, made.problem.names.index("rank")].tolist() == [0, -1, -2, 0]
    assert (made.counts.duplicates, made.counts.candidates, made.counts.single) == (1, 4, 1)


def test_lists_without_reference_are_left_out_and_counted():
    made = data(candidate_list("a"), candidate_list("b", reference=None), candidate_list("a b"))
    assert (made.counts.lists, made.counts.without_reference) == (2, 1)
    assert made.problem.statistics.tolist() == [[2, 3], [1, 3]]


def test_texts_of_a_choice_are_those_of_the_lists():
    made = data(candidate_list("a", "a", "b"), candidate_list("c", "d"))
    assert made.texts(np.array([1, 3])) == ["b", "d"]


def test_by_default_all_that_every_candidate_has_may_have_a_weight():
    features = [{"am": -9.0, "x": 1.0}, {"am": 4.0}]
    made = data(candidate_list("a", "b", features=features))
    assert made.problem.names == ("rank", "rank:log", "am", "words")
    assert made.ignored == ("x",)


def test_a_mean_is_offered_times_the_length_too():
    lists = [
        candidate_list(" ".join(["a"] * n), reference="a", features=[{"am": -0.3 + 0.01 * (n % 3)}])
        for n in range(1, 20)
    ]
    assert data(*lists).problem.names[2:5] == ("am", "am*words", "am*characters")


def test_a_sum_is_not_taken_for_a_mean_nor_is_an_indicator():
    words = np.arange(1.0, 40.0)
    assert not looks_like_mean(-2.5 * words, words)
    assert not looks_like_mean(np.where(words == words[0], -np.inf, -2.5), words)
    assert not looks_like_mean((words % 2 == 0).astype(float), words)
    assert looks_like_mean(-1 / words, words)


def test_the_exponent_makes_another_shape_of_the_models_score():
    lists = [candidate_list("a b", "a")]
    computed = ListFeatures(
        ("lm", "tokens", "unk", "words"), np.array([[-6.0, 3, 0, 2], [-4.0, 2, 1, 1]]), np.array([0, 2])
    )
    made = run_to_completion(
        tuning_data(lists, computed, WER, features=["lm", "words"], length_exponents=[0.0, 1.0])
    )
    assert [shape.features[:, 0].tolist() for shape in made.shapes] == [[-6, -4], [-2, -2]]


def test_a_named_feature_that_is_missing_is_told_with_its_place():
    lists = [candidate_list("x", reference=None), candidate_list("a", "b", features=[{"am": 1.0}, {}])]
    with pytest.raises(InputError, match=r"lists\[1\].candidates\[1\].features has no 'am'"):
        data(*lists, features=["am"])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ((), "features has 0 names"),
        (("rank", "rank"), "'rank' more than once"),
        (["x"] * 65, "features has 65 names"),
    ],
)
def test_names_that_cannot_be_are_refused(features, message):
    with pytest.raises(InputError, match=message):
        data(candidate_list("a"), features=features)


def test_lists_without_any_reference_are_refused():
    with pytest.raises(InputError, match="none of 1 lists has a reference"):
        data(candidate_list("a", reference=None))


def test_comparing_all_texts_of_a_list_stops_often():
    one = candidate_list(*(f"a {n}" for n in range(300)))
    steps = tuning_data([one], words_alone([one]), WER, features=("consensus:bleu",))
    assert sum(1 for _ in steps) > 10


def with_impossible(num_lists=60):
    """Lists in which `lm` calls every fourth candidate impossible; in every tenth list all of them."""
    one = informative(num_lists)
    features = one.features.copy()
    features[3::4, 1] = -np.inf
    for number in range(0, num_lists, 10):
        features[5 * number : 5 * number + 5, 1] = -np.inf
    return replace(one, features=features, names=("rank", "lm", "useless")).with_floor(), features


def test_tuning_with_impossible_candidates_has_finite_figures_and_chooses_none_of_them():
    one, features = with_impossible()
    outcome = outcome_of(one)
    assert outcome.figures.decision == "tuned"
    assert np.isfinite([*outcome.figures.weights.values(), outcome.figures.posterior_scale]).all()
    assert np.isfinite([outcome.figures.tuned, outcome.figures.posteriors.cross_entropy]).all()
    impossible = np.isneginf(features[:, 1]).reshape(-1, 5)
    chosen = one.chosen(outcome.fitted.weights)
    assert not np.isneginf(features[chosen, 1])[~impossible.all(axis=1)].any()
    assert (chosen == one.first_pass())[impossible.all(axis=1)].all()


@pytest.mark.parametrize("weights", [[1.0, 1.0, 0.0], [1.0, -1.0, 0.5], [1.0, 0.0, 0.0], [0.0, 1e-9, 1.0]])
def test_totals_of_tuning_are_those_of_re_ranking(weights):
    one, features = with_impossible()
    totals = LogLinearModel(weights=dict(zip(one.names, weights, strict=True))).totals(features)
    assert one.totals(np.array(weights)) == pytest.approx(totals)


@pytest.mark.parametrize("direction", [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, -1.0, 0.3]])
def test_the_loss_along_a_line_is_that_of_the_candidates_chosen_on_it(direction):
    one, _ = with_impossible()
    weights, direction = np.array([0.3, 0.5, 0.1]), np.array(direction)
    curve = run_to_completion(line_loss(one, *one.line(weights, direction)))
    for angle in np.linspace(-1.5, 1.5, 41):
        chosen = one.chosen(weights + np.tan(angle) * direction)
        assert curve.at(np.array([angle])) == pytest.approx(one.score(chosen))
