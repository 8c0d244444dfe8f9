"""Tuning of reranking weights on lists with references."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from models.errors import InvalidInputError
from models.reranking.candidates import CandidateList
from models.reranking.features import CONSENSUS, ListFeatures, check_given, is_derived
from models.reranking.metrics.metric import Metric
from models.reranking.tuning.cross_fitting import (
    TuningData,
    TuningOutcome,
    cross_fit,
    select_with_references,
    tuning_data,
)
from models.reranking.tuning.fitting import TuningSettings, assign_folds
from models.reranking.tuning.problem import Ints
from service.engine.job import Work
from service.use_cases.candidate_features import ScoringModels, compute_features
from service.use_cases.inputs import Limits
from service.use_cases.rerank import MAX_COMPARED

MAX_CANDIDATES = 65_536
"""Candidates of all lists of one request; the command line takes any number."""

MAX_SEARCHES = 4096
"""Searches of one request: folds and one more, times exponents, times restarts and resamples."""

_LISTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneCommand:
    """A valid request to tune.

    Attributes:
        lists: with references, or they are left out.
        metric: to tune for.
        features: that may have weights; None for what lists and models have.
        settings: how to look.
    """

    lists: tuple[CandidateList, ...]
    metric: Metric
    features: tuple[str, ...] | None = None
    settings: TuningSettings = field(default_factory=TuningSettings)

    def check_searches(self) -> None:
        """Refuse more searches than one request may ask of the service.

        Raises:
            InvalidInputError: there are too many.
        """
        asked = self.settings
        searches = (asked.folds + 1) * len(asked.length_exponents) * (asked.restarts + asked.resamples)
        if searches > MAX_SEARCHES:
            raise InvalidInputError(
                f"(folds + 1) · length_exponents · (restarts + resamples) is {searches}; at most {MAX_SEARCHES} "
                "searches are made in one request",
                parameter="restarts",
            )


def check_candidate_count(count: int) -> None:
    """Refuse more candidates than one request may ask the service to tune on.

    Raises:
        InvalidInputError: there are too many.
    """
    if count > MAX_CANDIDATES:
        raise InvalidInputError(
            f"lists[].candidates has {count} entries; at most {MAX_CANDIDATES} are tuned on in one request: "
            "use `gramophone tune` for more",
            parameter="lists",
        )


class TuneResult(NamedTuple):
    """What came of it.

    Attributes:
        data: the lists as a problem.
        folds: of each list [N].
        outcome: weights, and what they are worth.
    """

    data: TuningData
    folds: Ints
    outcome: TuningOutcome


def tune(models: ScoringModels, command: TuneCommand, limits: Limits) -> Work[Any, TuneResult]:
    """Score the candidates, seek weights, and judge them; a use case.

    Raises:
        InvalidInputError: no list has references, a feature is missing, or there are too few lists.
        ContextLengthError: a candidate with its context has too many tokens.
    """
    numbers, told = select_with_references(command.lists)
    yield from _check(command, told, numbers, models)
    computed = yield from compute_features(models, told, limits)
    return (yield from tune_and_evaluate(command, computed))


def tune_and_evaluate(
    command: TuneCommand, computed: ListFeatures, *, searched: Callable[[], None] = lambda: None
) -> Work[Any, TuneResult]:
    """Seek weights, and judge them; a use case.

    Args:
        command: what to tune.
        computed: features of the candidates of all lists that have references.
        searched: called whenever a resample has been searched, at most `settings.num_resamples` times.

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
    outcome = yield from cross_fit(data, folds, command.settings, searched=searched)
    return TuneResult(data, folds, outcome)


def _list_prefix(numbers: Ints, place: int) -> str:
    return f"lists[{numbers[place]}]."


def _check(
    command: TuneCommand, lists: Sequence[CandidateList], numbers: Ints, models: ScoringModels
) -> Work[Any, None]:
    """Refuse lists that cannot be tuned on; `numbers` are what messages call them by."""
    for begin in range(0, len(lists), _LISTS_AT_ONCE):
        some, named = lists[begin : begin + _LISTS_AT_ONCE], numbers[begin : begin + _LISTS_AT_ONCE]
        check_given(some, models=models.extra, place=partial(_list_prefix, named))
        yield None
    compares = any(name.startswith(CONSENSUS) and is_derived(name) for name in command.features or ())
    longest = max(len(one.candidates) for one in lists)
    if compares and longest > MAX_COMPARED:
        raise InvalidInputError(
            f"a list has {longest} candidates; at most {MAX_COMPARED} are compared with each other for {CONSENSUS}",
            parameter="features",
        )
