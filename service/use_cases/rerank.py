"""Putting candidates in a better order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.reranking import derived
from models.reranking.confidence import WordPosterior, word_confidences_in_steps
from models.reranking.features import ListFeatures, check_given, derived_in_steps, given_column, offsets_of
from models.reranking.lists import CandidateList
from models.reranking.log_linear import LogLinearModel
from models.reranking.mbr import Utility, expected_utilities_in_steps
from models.reranking.ranking import Ranking, rank_by, scaled_posteriors
from service.engine.job import Work
from service.use_cases.candidate_features import (
    NO_START_STATES,
    CandidateScores,
    ScoringOptions,
    TokenScores,
    score_candidates,
)
from service.use_cases.limits import Limits
from service.use_cases.rerank_sessions import Turn, resume_sessions
from service.use_cases.score import Detail
from service.use_cases.scoring_models import ScoringModels
from service.use_cases.states import OwnedStateStore

MAX_COMPARED = 1000
"""Candidates of a list of which each is compared with each, as risks, agreement and confidences ask for."""

CANDIDATES_PER_STEP = 256
"""Candidates that are looked at before other requests have their turn."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOptions:
    """How lists are re-ranked.

    Attributes:
        weighting: weights of features.
        scoring: how models score.
        posterior_scale: what totals are multiplied by to make posteriors.
        mbr: what to choose by, expected under the posteriors; None chooses by the total.
        confidences: whether to tell how sure each word of the best candidate is.
        detail: how finely to report scores.
        drop_duplicates: whether a candidate of the same text as one before it is left out.
        top: how many candidates of each list to report; None is all.
        commit_eos: whether `</s>` is read after what a session commits.
    """

    weighting: LogLinearModel = field(default_factory=LogLinearModel)
    scoring: ScoringOptions = field(default_factory=ScoringOptions)
    posterior_scale: float = 1.0
    mbr: Utility | None = None
    confidences: bool = False
    detail: Detail = Detail.NONE
    drop_duplicates: bool = False
    top: int | None = None
    commit_eos: bool = False

    @property
    def is_pairwise(self) -> bool:
        """Whether each candidate of a list is compared with each other one."""
        made = (name for name in self.weighting.weights if name.startswith(derived.CONSENSUS))
        return self.mbr is not None or self.confidences or any(made)


class RerankItem(NamedTuple):
    """A list to re-rank.

    Attributes:
        given: the list; its context is empty where it belongs to a session.
        turn: what it says of that session; None where it belongs to none.
    """

    given: CandidateList
    turn: Turn | None = None


class RankedList(NamedTuple):
    """A list in its new order.

    Attributes:
        given: the list, without the duplicates that were dropped.
        indices: where its candidates stood before any were dropped [C].
        ranking: its order and posteriors.
        totals: of the candidates in the order given [C].
        feature_names: of what was computed.
        feature_values: of the candidates in the order given [C, F].
        utilities: expected, of the candidates in the order given [C]; None if not asked for.
        confidences: of the best candidate's words; none if not asked for.
        tokens: of one candidate, by its place as given; None where no model was asked.
        session: for the list after it; None where it belongs to none.
    """

    given: CandidateList
    indices: npt.NDArray[np.int64]
    ranking: Ranking
    totals: Floats
    feature_names: tuple[str, ...]
    feature_values: Floats
    utilities: Floats | None
    confidences: list[WordPosterior]
    tokens: Callable[[int], TokenScores] | None
    session: str | None

    @property
    def chosen(self) -> int:
        """The place of the best candidate in the list as it was given."""
        return int(self.indices[self.ranking.order[0]])

    def features(self, place: int) -> dict[str, float]:
        """A candidate's features, given and computed, by its place."""
        computed = zip(self.feature_names, self.feature_values[place].tolist(), strict=True)
        return {**self.given.candidates[place].features, **dict(computed)}


def rerank(
    models: ScoringModels,
    items: Sequence[RerankItem],
    options: RerankOptions,
    limits: Limits,
    *,
    states: OwnedStateStore | None = None,
    name: Callable[[int], str] = "lists[{}].".format,
) -> Work[Any, list[RankedList]]:
    """Score every candidate as a whole sentence after its context, and order each list anew. A use case.

    Args:
        models: who scores.
        items: lists, at least one.
        options: how.
        limits: of one text with its context.
        states: where sessions are kept; None where there are none.
        name: what stands before `candidates` in a message about list i.

    Raises:
        InvalidInputError: a weight has no feature, a feature is wrong, a list is too long to be compared, or a
            session cannot go on.
        ContextLengthError: a candidate with its context has too many tokens.
        UnsupportedParameterError: there is a context, and a model reads from right to left; or
            unnormalised scores are asked of a model that was not trained for them.
        StatesFullError: there is no room for another session.
    """
    given = _checked_columns(models, [item.given for item in items], options, name)
    yield None
    carried = None
    if states is not None and any(item.turn for item in items):
        bos, eos, turns = options.scoring.bos, options.commit_eos, [item.turn for item in items]
        carried = yield from resume_sessions(models, turns, states, limits, bos=bos, eos=eos, name=name)
    kept = [
        _without_duplicates(item.given) if options.drop_duplicates else _unfiltered(item.given)
        for item in items
    ]
    given = _filter_columns(given, kept, [item.given for item in items]) if options.drop_duplicates else given
    lists = [one.given for one in kept]
    starts = carried.starts if carried else NO_START_STATES
    scores = yield from score_candidates(models, lists, limits, options.scoring, starts=starts, place=name)
    features = scores.features.normalised(options.weighting.length_exponent)
    features = yield from _with_derived(lists, features, options, name)
    totals = options.weighting.totals(features.matrix(list(options.weighting.weights), given))
    ranked = yield from _rank_lists(kept, features, totals, scores, options)
    if carried is None:
        return ranked
    return [one._replace(session=s) for one, s in zip(ranked, carried.sessions(), strict=True)]


class _FilteredList(NamedTuple):
    """A list, perhaps without duplicates, and where its candidates stood before."""

    given: CandidateList
    indices: npt.NDArray[np.int64]


def _unfiltered(one: CandidateList) -> _FilteredList:
    return _FilteredList(one, np.arange(len(one.candidates)))


def _without_duplicates(one: CandidateList) -> _FilteredList:
    """The first candidate of each text."""
    first: dict[str, int] = {}
    for place, candidate in enumerate(one.candidates):
        first.setdefault(candidate.text, place)
    if len(first) == len(one.candidates):
        return _unfiltered(one)
    candidates = tuple(one.candidates[place] for place in first.values())
    given = CandidateList(one.name, one.context, candidates, one.references, one.continuation)
    return _FilteredList(given, np.array(list(first.values())))


def _filter_columns(
    given: Mapping[str, Floats], kept: Sequence[_FilteredList], lists: Sequence[CandidateList]
) -> dict[str, Floats]:
    """Given features of the candidates that were not dropped."""
    offsets = offsets_of(lists)
    rows = np.concatenate([first + one.indices for first, one in zip(offsets, kept, strict=False)])
    return {name: column[rows] for name, column in given.items()}


def _checked_columns(
    models: ScoringModels,
    lists: Sequence[CandidateList],
    options: RerankOptions,
    name: Callable[[int], str],
) -> dict[str, Floats]:
    """The given features that have weights; what could not be weighed is refused before anything is scored."""
    options.weighting.check(models.extra)
    check_given(lists, models=models.extra, place=name)
    longest = max(range(len(lists)), key=lambda i: len(lists[i].candidates))
    count = len(lists[longest].candidates)
    if options.is_pairwise and count > MAX_COMPARED:
        raise InvalidInputError(
            f"{name(longest)}candidates has {count} entries; where each is compared with each (mbr, confidences, "
            f"consensus), at most {MAX_COMPARED} are accepted in a list",
            parameter=f"{name(longest)}candidates",
        )
    return {feature: given_column(lists, feature, place=name) for feature in options.weighting.given}


def _with_derived(
    lists: Sequence[CandidateList], features: ListFeatures, options: RerankOptions, name: Callable[[int], str]
) -> Work[Any, ListFeatures]:
    """With the derived features that have weights."""
    made = tuple(feature for feature in options.weighting.weights if derived.is_derived(feature))
    if not made:
        return features
    parts = []
    read = 0
    for number, one in enumerate(lists):
        of_list = features.of_list(number)
        parts.append((yield from derived_in_steps(one, of_list, made, place=name(number))))
        read += len(one.candidates)
        if read > CANDIDATES_PER_STEP:
            read = 0
            yield None
    return features.extended(made, np.concatenate(parts))


def _rank_lists(
    kept: Sequence[_FilteredList],
    features: ListFeatures,
    totals: Floats,
    scores: CandidateScores,
    options: RerankOptions,
) -> Work[Any, list[RankedList]]:
    ranked = []
    done = 0
    for number, (given, indices) in enumerate(kept):
        first, end = features.offsets[number : number + 2].tolist()
        one = yield from _rank_list(given, indices, features, totals[first:end], first, scores, options)
        ranked.append(one)
        done += len(indices)
        if options.is_pairwise or done > CANDIDATES_PER_STEP:
            done = 0
            yield None
    return ranked


def _rank_list(
    given: CandidateList,
    indices: npt.NDArray[np.int64],
    features: ListFeatures,
    totals: Floats,
    first: int,
    scores: CandidateScores,
    options: RerankOptions,
) -> Work[Any, RankedList]:
    posteriors = scaled_posteriors(totals, options.posterior_scale)
    utilities = None
    if options.mbr is not None:
        texts = [c.text for c in given.candidates]
        utilities = yield from expected_utilities_in_steps(texts, posteriors, options.mbr)
    ranking = rank_by(totals if utilities is None else utilities, posteriors)
    confidences: list[WordPosterior] = []
    if options.confidences:
        texts = [c.text for c in given.candidates]
        best = int(ranking.order[0])
        (confidences,) = yield from word_confidences_in_steps(texts, posteriors, chosen=[best])
    tokens = scores.tokens
    return RankedList(
        given,
        indices,
        ranking,
        totals,
        features.names,
        features.values[first : first + len(totals)],
        utilities,
        confidences,
        None if tokens is None else (lambda place: tokens(first + place)),
        None,
    )
