"""Reranking of candidate lists by a log-linear combination of features, one list or a stream.

A list of a stream that is wrong fails alone. In a session the candidates of each list follow the
text that the client committed before: a session is a handle to one state per model, so its cost
does not grow with the committed text. Using a session changes nothing, so a list may be sent again,
with the same commit or another.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.errors import InvalidInputError, LanguageModelError, StatesFullError
from models.language_model import pad_sequences
from models.reranking import features as reranking_features
from models.reranking.candidates import CandidateList
from models.reranking.features import ListFeatures, check_given, derived_in_steps, given_column, offsets_of
from models.reranking.mbr import (
    Utility,
    WordPosterior,
    expected_utilities_in_steps,
    word_confidences_in_steps,
)
from models.reranking.ranking import LogLinearModel, Ranking, rank_by, scaled_posteriors
from models.vocabulary import EOS
from service.engine.batching import concatenate_states, materialize
from service.engine.calls import consume
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.engine.state_store import StoredState
from service.use_cases.candidate_features import (
    NO_START_STATES,
    CandidateScores,
    ScoringModels,
    ScoringOptions,
    StartStates,
    TokenScores,
    score_candidates,
)
from service.use_cases.inputs import Limits, check_reads_forward
from service.use_cases.prefill import chunks_by_length
from service.use_cases.score import Detail
from service.use_cases.states import OwnedStateStore, ids_after

_HANDLE_SEPARATOR = ","


class Turn(NamedTuple):
    """What a list says of the session it belongs to.

    Attributes:
        session: what the reply to the list before it gave; None begins a session.
        commit: the text that the client chose of the list before, which is read first; None if nothing is to be read.
    """

    session: str | None
    commit: str | None


class SessionStates(NamedTuple):
    """Where the lists of a request start.

    Attributes:
        starts: the states that they follow.
        turns: what each list says, by the number of its state; None for a list without a session.
        place: where states are kept.
    """

    starts: StartStates
    turns: Sequence[Turn | None]
    place: OwnedStateStore

    def sessions(self) -> list[str | None]:
        """What each list's reply gives, for the list after it: the same as before where nothing was committed.

        Raises:
            StatesFullError: there is no room for the states; none is kept.
        """
        numbers = self.starts.of_lists
        news = sorted(
            {
                n
                for n, turn in zip(numbers, self.turns, strict=True)
                if turn and turn.commit is not None and n is not None
            }
        )
        kept = [states[n] for n in news for states in self.starts.of_models]
        handles = iter(self.place.store.keep(self.place.owner, kept))
        made = {n: _HANDLE_SEPARATOR.join(next(handles) for _ in self.starts.of_models) for n in news}
        return [
            None if turn is None or n is None else made.get(n, turn.session)
            for n, turn in zip(numbers, self.turns, strict=True)
        ]


def resume_sessions(
    models: ScoringModels,
    turns: Sequence[Turn | None],
    place: OwnedStateStore,
    limits: Limits,
    *,
    bos: bool,
    eos: bool,
    name: Callable[[int], str],
) -> Work[Any, SessionStates]:
    """Find the states of sessions and read what is committed; a use case.

    Args:
        models: who scores.
        turns: of each list; None for a list without a session.
        place: where states are kept.
        limits: of what a state has read.
        bos: whether a session begins with `<s>`.
        eos: whether `</s>` is read after what is committed.
        name: what stands before `session` in a message about list i.

    Raises:
        UnknownStateError: a session was freed or has expired.
        StateElsewhereError: another process keeps it.
        InvalidInputError: a session is of other models than the request's.
        ContextLengthError: what was committed has become too long.
        UnsupportedParameterError: a model reads from right to left.
        StatesFullError: there is no room for what would be kept.
    """
    numbers: dict[Turn, int] = {}
    of_lists = [None if turn is None else numbers.setdefault(turn, len(numbers)) for turn in turns]
    names = {of_lists[i]: name(i) for i in reversed(range(len(turns)))}
    place.store.check_capacity(len(models.all) * sum(turn.commit is not None for turn in numbers))
    found = [_session_states(models, turn, place, names[n], bos=bos) for turn, n in numbers.items()]
    of_models = []
    for number, loaded in enumerate(models.all):
        check_reads_forward(loaded)
        befores = [states[number] for states in found]
        texts = [_commit_ids(befores[n], turn, names[n], limits, eos=eos) for turn, n in numbers.items()]
        of_models.append((yield from _read_commits(loaded, befores, texts)))
    return SessionStates(StartStates(of_lists, of_models), turns, place)


def _session_states(
    models: ScoringModels, turn: Turn, place: OwnedStateStore, name: str, *, bos: bool
) -> list[StoredState]:
    """What each model remembers of a session."""
    if turn.session is None:
        return [
            StoredState(loaded, loaded.model.initial_state(1) if bos else loaded.model.empty_state(1))
            for loaded in models.all
        ]
    states = place.store.find(place.owner, turn.session.split(_HANDLE_SEPARATOR), parameter=f"{name}session")
    told = [kept.loaded for kept in states]
    if len(told) != len(models.all) or any(a is not b for a, b in zip(told, models.all, strict=True)):
        raise InvalidInputError(
            f"{name}session is of {', '.join(one.address for one in told)} as loaded then, and this request asks "
            f"{', '.join(one.address for one in models.all)}: begin another session, with what was committed as its "
            "first commit",
            parameter=f"{name}session",
        )
    return states


def _commit_ids(before: StoredState, turn: Turn, name: str, limits: Limits, *, eos: bool) -> TokenIds:
    if turn.commit is None:
        return np.zeros(0, dtype=np.int64)
    limits.check_characters(turn.commit, parameter=f"{name}commit")
    if eos:
        ids = np.append(ids_after(before, turn.commit), EOS)
    else:
        ids = ids_after(before, _with_trailing_space(before.loaded, turn.commit))
    limits.check_length(before.num_tokens + len(ids), parameter=f"{name}commit")
    return ids


def _with_trailing_space(loaded: LoadedModel, text: str) -> str:
    """A text with the space that stands before the next candidate: as after a context, it is read and not scored."""
    own = loaded.tokenizer.leading_space  # of the next word's first token
    return text if own or not text or text[-1].isspace() else text + " "


def _read_commits(
    loaded: LoadedModel, befores: Sequence[StoredState], texts: Sequence[TokenIds]
) -> Work[Any, list[StoredState]]:
    """The states after texts, each read after its own."""
    states = [kept.state for kept in befores]
    for rows in chunks_by_length(np.array([len(text) for text in texts], dtype=np.int64)):
        tokens, lengths = pad_sequences([texts[row] for row in rows])
        if tokens.size:
            state = concatenate_states([befores[row].state for row in rows])
            after = yield from consume(loaded.model, state, tokens, lengths)
            for place, row in enumerate(rows):
                states[row] = materialize(after.select(np.array([place])))  # as what is kept must be
            yield None
    return [
        StoredState(loaded, state, kept.num_tokens + len(ids), int(ids[-1]) if len(ids) else kept.last_token)
        for state, kept, ids in zip(states, befores, texts, strict=True)
    ]


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
        made = (name for name in self.weighting.weights if name.startswith(reranking_features.CONSENSUS))
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
    made = tuple(feature for feature in options.weighting.weights if reranking_features.is_derived(feature))
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


RerankOutcome: TypeAlias = RankedList | LanguageModelError
"""What became of a line; an error if it is wrong."""

RerankLine: TypeAlias = RerankItem | InvalidInputError
"""A list, or why there is none."""

_CANDIDATES_PER_BATCH = 2048
_LINES_PER_BATCH = 256
_BYTES_PER_PIECE = 1 << 15


def rerank_lines(
    models: ScoringModels,
    lines: Iterator[RerankLine],
    options: RerankOptions,
    limits: Limits,
    *,
    write: Callable[[RerankOutcome], Iterator[bytes]],
    states: OwnedStateStore | None = None,
) -> Work[bytes, None]:
    """Re-rank a stream of lists; a wrong one does not stop the others. A use case.

    Args:
        models: who scores.
        lines: a list each, or why there is none.
        options: how.
        limits: of one text with its context.
        write: makes of an outcome pieces of what is answered, each in a bounded time.
        states: where sessions are kept.

    Yields:
        Events: pieces of the answer, in order.
    """
    while batch := (yield from read_batch(lines)):
        written = bytearray()
        for outcome in (yield from rerank_batch(models, batch, options, limits, states=states)):
            for piece in write(outcome):
                written += piece
                if len(written) >= _BYTES_PER_PIECE:
                    yield bytes(written)
                    written.clear()
        yield bytes(written)


def read_batch(lines: Iterator[RerankLine]) -> Work[Any, list[RerankLine]]:
    """The next of some lines, as many as are re-ranked together; none at the end. A use case."""
    batch: list[RerankLine] = []
    count = read = 0
    for line in lines:
        batch.append(line)
        size = len(line.given.candidates) if isinstance(line, RerankItem) else 1
        count, read = count + size, read + size
        if count >= _CANDIDATES_PER_BATCH or len(batch) >= _LINES_PER_BATCH:
            break
        if read >= CANDIDATES_PER_STEP:
            read = 0
            yield None
    return batch


def rerank_batch(
    models: ScoringModels,
    lines: Sequence[RerankLine],
    options: RerankOptions,
    limits: Limits,
    *,
    states: OwnedStateStore | None = None,
) -> Work[Any, list[RerankOutcome]]:
    """What becomes of some lines: re-ranked together, or if one is wrong one by one, so that only that one fails.

    A use case; see `rerank_lines` for the arguments.
    """
    items = [line for line in lines if isinstance(line, RerankItem)]
    ranked = iter((yield from _rerank_or_split(models, items, options, limits, states)))
    return [next(ranked) if isinstance(line, RerankItem) else line for line in lines]


def _rerank_or_split(
    models: ScoringModels,
    items: Sequence[RerankItem],
    options: RerankOptions,
    limits: Limits,
    states: OwnedStateStore | None,
) -> Work[Any, list[RerankOutcome]]:
    if not items:
        return []
    try:
        return [*(yield from rerank(models, items, options, limits, states=states, name=_no_prefix))]
    except (InvalidInputError, StatesFullError) as error:
        if len(items) == 1:
            return [error]
    one_by_one: list[RerankOutcome] = []
    for item in items:
        one_by_one += yield from _rerank_or_split(models, [item], options, limits, states)
    return one_by_one


def _no_prefix(_: int) -> str:
    """What stands before `candidates` in messages where a line is one list."""
    return ""
