"""Tuning with cross-fitting: every list is held out once, so new lists should gain as much."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from models.arrays import Float64s, Int64s, runs_by_cost
from models.calls import Steps, map_in_steps
from models.errors import InputError
from models.files import count_words
from models.phrases import is_phrase_feature
from models.reranking.candidates import CandidateList
from models.reranking.features import (
    CANDIDATES_PER_STEP,
    LM,
    NUM_UNKNOWN,
    NUM_WORDS,
    RANK,
    RANK_LOG,
    ListFeatures,
    given_column,
    length_scaled_name,
    text_ranks,
    with_derived,
)
from models.reranking.metrics.metric import Metric, SignificanceResult, paired_bootstrap
from models.reranking.proposals import CORRECTION, DOUBT, PROPOSED_FEATURES, replacements_of
from models.reranking.tuning.fitting import (
    FIRST_PASS_WEIGHTS,
    FittedWeights,
    PosteriorResult,
    TuningSettings,
    fit_feature_weights,
    fit_posterior_scale,
    is_improvement,
)
from models.reranking.tuning.mert import TuningProblem

MAX_FEATURES = 64
_MIN_LENGTH_CORRELATION = 0.5
_SAME_SIGN_SHARE = 0.9

_MIN_CORRECTION_GAIN = 0.01
"""Minimum share of the errors that weights with corrections remove on held-out lists; else a table that
writes what no recogniser wrote is not worth its risk."""


@dataclass(frozen=True, slots=True)
class CountsResult:
    """Numbers of lists and candidates.

    Attributes:
        lists: number of lists used for tuning.
        without_reference: number of lists skipped because they have no reference.
        single: number of lists whose candidates all have the same text.
        candidates: number of distinct candidates.
        duplicates: number of candidates that repeat an earlier text of their list.
    """

    lists: int
    without_reference: int
    single: int
    candidates: int
    duplicates: int


@dataclass(frozen=True, slots=True, eq=False)
class TuningData:
    """Lists as a tuning problem, in one or more shapes.

    Attributes:
        lists: the lists with references.
        shapes: the problem under each length exponent, the simplest first.
        candidate_indices: index of each distinct candidate in its list [C].
        counts: numbers of lists and candidates.
        ignored: given features that some candidates lack.
    """

    lists: tuple[CandidateList, ...]
    shapes: tuple[TuningProblem, ...]
    candidate_indices: Int64s
    counts: CountsResult
    ignored: tuple[str, ...]

    @property
    def problem(self) -> TuningProblem:
        """Problem in its simplest shape."""
        return self.shapes[0]

    def texts(self, chosen: Int64s) -> list[str]:
        """Return the texts of a choice of candidates [N]."""
        return [
            one.candidates[index].text
            for one, index in zip(self.lists, self.candidate_indices[chosen].tolist(), strict=True)
        ]


def with_references(lists: Sequence[CandidateList]) -> tuple[Int64s, tuple[CandidateList, ...]]:
    """Select the lists with references, and their indices.

    Raises:
        InputError: no list has a reference.
    """
    numbers = [number for number, one in enumerate(lists) if one.references]
    if not numbers:
        raise InputError(
            f"none of {len(lists)} lists has a reference: give reference or references with each list",
            param="lists",
        )
    return np.array(numbers), tuple(lists[number] for number in numbers)


def list_prefix(numbers: Int64s, index: int) -> str:
    """Return the message prefix of a selected list's fields.

    `numbers` are the indices of the selected lists.
    """
    return f"lists[{numbers[index]}]."


def tuning_data(
    lists: Sequence[CandidateList],
    computed: ListFeatures,
    metric: Metric,
    *,
    features: Sequence[str] | None = None,
    length_exponents: Sequence[float] = (0.0,),
) -> Steps[TuningData]:
    """Create a tuning problem from lists.

    Args:
        lists: all lists; those without references are skipped.
        computed: computed features of the lists with references, in order.
        metric: metric to tune for.
        features: features to weight; None: `default_features`.
        length_exponents: exponents to choose from, if a language model scores.

    Raises:
        InputError: no list has a reference, a candidate lacks a feature, or features are too many.
    """
    numbers, given = with_references(lists)
    common, ignored = yield from given_features(given)
    names = tuple(features) if features is not None else default_features(given, computed, common)
    _check_names(names)
    scored = any(name.partition(":")[0] == LM for name in names)
    exponents = tuple(length_exponents) if scored else (0.0,)
    parts = []
    for chunk in runs_by_cost(np.diff(computed.offsets), CANDIDATES_PER_STEP):
        some, values = given[chunk], computed.of_lists(chunk.start, chunk.stop)
        texts = [[candidate.text for candidate in one.candidates] for one in some]
        highest_ranks = [np.maximum.accumulate(text_ranks(of_list)) for of_list in texts]
        distinct = np.concatenate([np.diff(ranks, prepend=-1) > 0 for ranks in highest_ranks])
        distinct |= np.array([bool(replacements_of(c)) for one in some for c in one.candidates])
        place = partial(list_prefix, numbers[chunk])
        derived = yield from with_derived(some, values.normalised(exponents[0]), names, place=place)
        # −∞: impossible paths of lattices
        others = {
            name: derived.column(name)
            if name in derived.names
            else given_column(some, name, place=place, least=-np.inf)
            for name in names
        }
        shaped = [values.normalised(exponent).matrix(names, others)[distinct] for exponent in exponents]
        yield
        references = [one.references for one in some]
        counts = np.concatenate(list(map(metric.statistics, texts, references)))
        parts.append((distinct, counts[distinct], shaped))
        yield
    rows, statistics, matrices = zip(*parts, strict=True)
    chosen = np.concatenate(rows)
    offsets = np.concatenate(([0], np.cumsum(chosen)))[computed.offsets]
    every = np.concatenate(statistics)
    shapes = tuple(
        TuningProblem(names, np.concatenate(matrix), every, offsets, metric, exponent).with_floor()
        for exponent, matrix in zip(exponents, zip(*matrices, strict=True), strict=True)
    )
    indices = np.concatenate([np.arange(len(one.candidates)) for one in given])[chosen]
    counted = CountsResult(
        lists=len(given),
        without_reference=len(lists) - len(given),
        single=int((np.diff(offsets) == 1).sum()),
        candidates=int(chosen.sum()),
        duplicates=int((~chosen).sum()),
    )
    return TuningData(given, shapes, indices, counted, () if features is not None else ignored)


def given_features(lists: Sequence[CandidateList]) -> Steps[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the given features of every candidate, and those of only some, both sorted."""
    of_lists = yield from map_in_steps(
        lists,
        lambda one: {frozenset(candidate.features) for candidate in one.candidates},
        size=lambda one: 32 * len(one.candidates),
    )
    kinds = set[frozenset[str]]().union(*of_lists)
    common, known = frozenset.intersection(*kinds), frozenset().union(*kinds)
    return tuple(sorted(common)), tuple(sorted(known - common))


def default_features(
    lists: Sequence[CandidateList], computed: ListFeatures, given: Sequence[str]
) -> tuple[str, ...]:
    """Choose the features to weight by default.

    These are both rank features, the features given with every candidate, each also times the text's length
    if it seems to be a mean over the text, the models' features, the number of words, the phrases' features,
    and, with candidates of proposals, their features.
    """
    names = [RANK, RANK_LOG]
    words = np.array([count_words(one.candidates[0].text) for one in lists], np.float64)
    for name in given:
        names.append(name)
        values = np.array([one.candidates[0].features[name] for one in lists], np.float64)
        if looks_like_mean(values, words):
            names += [length_scaled_name(name, "words"), length_scaled_name(name, "characters")]
    models = [name for name in computed.names if name.partition(":")[0] in {LM, NUM_UNKNOWN}]
    replaced = [r for one in lists for candidate in one.candidates for r in replacements_of(candidate)]
    made = {one.feature for one in replaced} | {DOUBT for one in replaced if one.doubt}
    phrases = filter(is_phrase_feature, computed.names)
    return (*names, *models, NUM_WORDS, *phrases, *filter(made.__contains__, PROPOSED_FEATURES))


def looks_like_mean(values: Float64s, words: Float64s) -> bool:
    """True if a score is probably a mean over each text, not a sum: it does not grow with length.

    Args:
        values: first candidates' scores [N].
        words: their numbers of words [N].
    """
    negative, zero, positive = ((np.sign(values) == sign).mean() for sign in (-1, 0, 1))
    if not np.isfinite(values).all() or max(min(negative, positive), zero) > 1 - _SAME_SIGN_SHARE:
        return False  # neither log-probabilities nor costs
    sizes = np.abs(values)
    if sizes.std() == 0 or words.std() == 0:
        return False
    return float(np.corrcoef(sizes, words)[0, 1]) < _MIN_LENGTH_CORRELATION


def _check_names(names: Sequence[str]) -> None:
    if not 1 <= len(names) <= MAX_FEATURES:
        raise InputError.of("features", f"has {len(names)} names; it must have from 1 to {MAX_FEATURES}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError.of("features", f"names {twice!r} more than once")


@dataclass(frozen=True, slots=True)
class FoldResult:
    """Scores of a fold with weights that were found without it.

    Attributes:
        num_lists: number of lists in the fold.
        weights: weights found on the other folds.
        length_exponent: length exponent found on the other folds.
        baseline: score of the first candidates.
        tuned: score of the candidates chosen by these weights.
        oracle: score of the best candidates.
        in_sample: score of these weights on the folds where they were found.
    """

    num_lists: int
    weights: dict[str, float]
    length_exponent: float
    baseline: float
    tuned: float
    oracle: float
    in_sample: float


@dataclass(frozen=True, slots=True)
class TuningFigures:
    """Weights and their evaluation; `TuneReply` of the service documents the fields."""

    decision: str
    reason: str
    weights: dict[str, float]
    length_exponent: float
    posterior_scale: float
    metric: str
    signature: str
    baseline: float
    tried: float
    tuned: float
    oracle: float
    worst: float
    significance: SignificanceResult
    folds: list[FoldResult]
    counts: CountsResult
    posteriors: PosteriorResult


class TuningOutcome(NamedTuple):
    """Result of tuning.

    Attributes:
        data: the tuning data.
        figures: the weights and their evaluation.
        found: the weights found on all lists, recommended or not.
        fitted: the recommended weights: those found, or the first pass.
        first: first candidate of each list [N].
        held_out: each list's candidate by the weights found without its fold [N].
        oracle: best candidate of each list [N].
    """

    data: TuningData
    figures: TuningFigures
    found: FittedWeights
    fitted: FittedWeights
    first: Int64s
    held_out: Int64s
    oracle: Int64s


def cross_fit(
    data: TuningData, folds: Int64s, settings: TuningSettings, *, searched: Callable[[], None] = lambda: None
) -> Steps[TuningOutcome]:
    """Find weights, and decide whether to recommend them.

    Weights are found once per fold, on the other folds, and re-rank the fold's lists; then on all lists.
    The latter are the result if the held-out lists improve by more than chance.

    Args:
        data: lists and their features.
        folds: fold of each list, from 0 [N].
        settings: settings of the search.
        searched: callback after each resample, at most `settings.num_resamples` times.
    """
    problem = data.problem
    held_out = problem.first_pass().copy()
    results = []
    for fold in range(settings.folds):
        lists, others = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        fitted = yield from fit_feature_weights(data.shapes, others, settings, searched=searched)
        inside, outside = data.shapes[fitted.shape].of(lists), data.shapes[fitted.shape].of(others)
        chosen = fitted.chosen(inside)
        held_out[lists] += chosen - inside.first_pass()
        results.append(
            FoldResult(
                num_lists=len(lists),
                weights=fitted.by_feature(problem.names),
                length_exponent=fitted.length_exponent,
                baseline=inside.score(inside.first_pass()),
                tuned=inside.score(chosen),
                oracle=inside.score(inside.oracle()),
                in_sample=outside.score(fitted.chosen(outside)),
            )
        )
        yield
    found = yield from fit_feature_weights(
        data.shapes, np.arange(problem.num_lists), settings, searched=searched
    )
    first, oracle = problem.first_pass(), problem.oracle()
    test = yield from paired_bootstrap(
        problem.metric,
        problem.statistics[first],
        problem.statistics[held_out],
        samples=settings.bootstrap_samples,
        seed=settings.seed,
    )
    decision, reason = _accept_or_reject(problem, test, found, settings)
    fitted = found if decision == "tuned" else FIRST_PASS_WEIGHTS
    totals = candidate_totals(data, fitted)
    scale, posteriors = yield from fit_posterior_scale(data.shapes[fitted.shape], totals)
    baseline, tried = problem.score(first), problem.score(held_out)
    figures = TuningFigures(
        decision=decision,
        reason=reason,
        weights=fitted.by_feature(problem.names),
        length_exponent=fitted.length_exponent,
        posterior_scale=scale,
        metric=problem.metric.name,
        signature=problem.metric.signature,
        baseline=baseline,
        tried=tried,
        tuned=tried if decision == "tuned" else baseline,
        oracle=problem.score(oracle),
        worst=problem.score(problem.oracle(worst=True)),
        significance=test,
        folds=results,
        counts=data.counts,
        posteriors=posteriors,
    )
    return TuningOutcome(data, figures, found, fitted, first, held_out, oracle)


def _accept_or_reject(
    problem: TuningProblem, test: SignificanceResult, fitted: FittedWeights, settings: TuningSettings
) -> tuple[str, str]:
    name = problem.metric.name.upper()
    change = f"on held-out lists, {name} changes by {test.difference:+.2f} (p = {test.p_value:.3f})"
    baseline = problem.score(problem.first_pass())
    errors = 100 - baseline if problem.metric.higher_is_better else baseline
    corrects = CORRECTION in problem.names and settings.max_p_value < 1
    if not is_improvement(problem, test):
        why = "which is not better"
    elif test.p_value > settings.max_p_value:
        why = f"which may be chance (p > {settings.max_p_value:g})"
    elif corrects and abs(test.difference) < _MIN_CORRECTION_GAIN * errors:
        why = f"too little for corrections (less than {_MIN_CORRECTION_GAIN:.0%} of the errors)"
    elif fitted.weights is None:
        why = "but no weights beat it on all lists together"
    else:
        return "tuned", f"Use the weights: {change}."
    return "first_pass", f"Keep the first pass: {change}, {why}."


def candidate_totals(data: TuningData, fitted: FittedWeights) -> Float64s:
    """Compute all candidates' totals [C]; for the first pass, minus the index in the list."""
    problem = data.shapes[fitted.shape]
    if fitted.weights is None:
        indices = np.arange(len(problem.features)) - np.repeat(problem.first_pass(), np.diff(problem.offsets))
        return -indices.astype(np.float64)
    return problem.totals(fitted.weights)
