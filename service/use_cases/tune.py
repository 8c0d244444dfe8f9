"""Tuning of reranking weights on lists with references."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from models.errors import InvalidInputError
from models.reranking.candidates import CandidateList
from models.reranking.features import CONSENSUS, ListFeatures, check_given, is_derived
from models.reranking.metrics.metric import Metric
from models.reranking.tuning.cross_fitting import (
    TuningOutcome,
    cross_fit,
    list_prefix,
    select_with_references,
    tuning_data,
)
from models.reranking.tuning.fitting import TuningSettings, assign_folds
from models.reranking.tuning.problem import Ints
from service.engine.job import Work
from service.use_cases.candidate_features import ScoringModels, score_candidates
from service.use_cases.constants import LISTS_AT_ONCE
from service.use_cases.inputs import Limits
from service.use_cases.rerank import MAX_COMPARED

MAX_CANDIDATES = 65_536
"""Candidates of all lists of one request at most; the command line takes any number."""

MAX_SEARCHES = 4096
"""Searches of one request at most: (folds + 1) times exponents, times restarts and resamples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneCommand:
    """A valid request to tune.

    Attributes:
        lists: candidate lists; those without references are left out.
        metric: the objective.
        features: features that may have weights; None for all those of lists and models.
        settings: of the search.
    """

    lists: tuple[CandidateList, ...]
    metric: Metric
    features: tuple[str, ...] | None = None
    settings: TuningSettings = field(default_factory=TuningSettings)


def tune(models: ScoringModels, command: TuneCommand, limits: Limits) -> Work[Any, TuningOutcome]:
    """Score the candidates, search for weights, and evaluate them; a use case.

    Raises:
        InvalidInputError: no list has references, a feature is missing, or there are too few lists.
        ContextLengthError: a candidate with its context has too many tokens.
    """
    numbers, lists = select_with_references(command.lists)
    yield from _check(command, lists, numbers, models)
    scores = yield from score_candidates(models, lists, limits)
    return (yield from tune_and_evaluate(command, scores.features))


def tune_and_evaluate(
    command: TuneCommand, computed: ListFeatures, *, searched: Callable[[], None] = lambda: None
) -> Work[Any, TuningOutcome]:
    """Search for weights and evaluate them; a use case.

    Args:
        command: the request.
        computed: features of the candidates of all lists with references.
        searched: called after each resample, at most `settings.num_resamples` times.

    Raises:
        InvalidInputError: a feature is missing, or there are too few lists.
    """
    data = yield from tuning_data(
        command.lists,
        computed,
        command.metric,
        features=command.features,
        length_exponents=command.settings.length_exponents,
    )
    folds = assign_folds(data.lists, folds=command.settings.folds, seed=command.settings.seed)
    yield None
    return (yield from cross_fit(data, folds, command.settings, searched=searched))


def _check(
    command: TuneCommand, lists: Sequence[CandidateList], numbers: Ints, models: ScoringModels
) -> Work[Any, None]:
    """Refuse lists unfit for tuning; `numbers` are their indices in the request, for messages."""
    for begin in range(0, len(lists), LISTS_AT_ONCE):
        batch, batch_numbers = lists[begin : begin + LISTS_AT_ONCE], numbers[begin : begin + LISTS_AT_ONCE]
        check_given(batch, models=models.extra, place=partial(list_prefix, batch_numbers))
        yield None
    compares = any(name.startswith(CONSENSUS) and is_derived(name) for name in command.features or ())
    longest = max(len(item.candidates) for item in lists)
    if compares and longest > MAX_COMPARED:
        raise InvalidInputError(
            f"a list has {longest} candidates; at most {MAX_COMPARED} are compared with each other for {CONSENSUS}",
            parameter="features",
        )
