"""Reranking of candidate lists by a log-linear combination of features, one list or a stream.

An invalid list of a stream fails alone. In a session the candidates of each list follow the text
that the client committed before: a session is a handle to one state per model, so its cost does not
grow with the committed text. Sessions are immutable, so a list may be sent again, with the same
commit or another.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.calls import Read
from models.errors import InvalidInputError, LanguageModelError, StatesFullError
from models.language_model import STATE, pad_sequences
from models.reranking import features as reranking_features
from models.reranking.candidates import CandidateList
from models.reranking.features import (
    LM_SUM,
    MODEL_FEATURES,
    ListFeatures,
    base_feature,
    check_given,
    derived_in_steps,
    given_column,
    needs_tokens,
    offsets_of,
)
from models.reranking.mbr import (
    Utility,
    WordPosterior,
    expected_utilities_in_steps,
    word_confidences_in_steps,
)
from models.reranking.ranking import LogLinearModel, Ranking, rank_by, scaled_posteriors
from models.vocabulary import EOS
from service.engine.batching import concatenate_states, materialize
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
from service.use_cases.constants import (
    BYTES_PER_PIECE,
    CANDIDATES_PER_BATCH,
    CANDIDATES_PER_STEP,
    LINES_PER_BATCH,
)
from service.use_cases.inputs import Limits, check_reads_forward
from service.use_cases.prefill import chunks_by_length
from service.use_cases.score import Detail
from service.use_cases.states import OwnedStateStore, ids_after

_HANDLE_SEPARATOR = ","


class Turn(NamedTuple):
    """Session parameters of a list.

    Attributes:
        session: handle from the reply to the previous list; None begins a session.
        commit: text chosen by the client from the previous list, to read first; None to read nothing.
    """

    session: str | None
    commit: str | None


class SessionStates(NamedTuple):
    """Start states of the lists of a request.

    Attributes:
        starts: the states before the lists.
        turns: session parameters of each list; None for a list without a session.
        place: store of the states.
    """

    starts: StartStates
    turns: Sequence[Turn | None]
    place: OwnedStateStore

    def sessions(self) -> list[str | None]:
        """Store new states; return each list's session handle for the next list, unchanged without a commit.

        Raises:
            StatesFullError: the store has no capacity for the states; none is kept.
        """
        numbers = self.starts.of_lists
        new = sorted(
            {
                n
                for n, turn in zip(numbers, self.turns, strict=True)
                if turn and turn.commit is not None and n is not None
            }
        )
        to_keep = [states[n] for n in new for states in self.starts.of_models]
        handles = iter(self.place.store.keep(self.place.owner, to_keep))
        added = {n: _HANDLE_SEPARATOR.join(next(handles) for _ in self.starts.of_models) for n in new}
        return [
            None if turn is None or n is None else added.get(n, turn.session)
            for n, turn in zip(numbers, self.turns, strict=True)
        ]


def resume_sessions(
    models: ScoringModels,
    turns: Sequence[Turn | None],
    state_store: OwnedStateStore,
    limits: Limits,
    *,
    bos: bool,
    eos: bool,
    name: Callable[[int], str],
) -> Work[Any, SessionStates]:
    """Find the states of sessions and read the committed texts; a use case.

    Args:
        models: the scoring models.
        turns: session parameters of each list; None for a list without a session.
        state_store: store of the states.
        limits: of the text read by a state.
        bos: whether a session begins with `<s>`.
        eos: whether to read `</s>` after a commit.
        name: prefix of `session` in a message about list i.

    Raises:
        UnknownStateError: a session was freed or has expired.
        StateElsewhereError: another process keeps it.
        InvalidInputError: a session is of other models than the request's.
        ContextLengthError: the committed text has become too long.
        UnsupportedParameterError: a model reads from right to left.
        StatesFullError: the store has no capacity for the new states.
    """
    numbers: dict[Turn, int] = {}
    of_lists = [None if turn is None else numbers.setdefault(turn, len(numbers)) for turn in turns]
    names = {of_lists[i]: name(i) for i in reversed(range(len(turns)))}
    state_store.store.check_capacity(len(models.all) * sum(turn.commit is not None for turn in numbers))
    found = [_session_states(models, turn, state_store, names[n], bos=bos) for turn, n in numbers.items()]
    of_models = []
    for number, loaded in enumerate(models.all):
        check_reads_forward(loaded)
        previous = [states[number] for states in found]
        texts = [_commit_ids(previous[n], turn, names[n], limits, eos=eos) for turn, n in numbers.items()]
        of_models.append((yield from _read_commits(loaded, previous, texts)))
    return SessionStates(StartStates(of_lists, of_models), turns, state_store)


def _session_states(
    models: ScoringModels, turn: Turn, state_store: OwnedStateStore, name: str, *, bos: bool
) -> list[StoredState]:
    """Find each model's state of a session, or the start state of a new one."""
    if turn.session is None:
        return [
            StoredState(loaded, loaded.model.initial_state(1) if bos else loaded.model.empty_state(1))
            for loaded in models.all
        ]
    states = state_store.store.find(
        state_store.owner, turn.session.split(_HANDLE_SEPARATOR), parameter=f"{name}session"
    )
    found = [state.loaded for state in states]
    if len(found) != len(models.all) or any(a is not b for a, b in zip(found, models.all, strict=True)):
        raise InvalidInputError(
            f"{name}session is of {', '.join(m.address for m in found)} as loaded then, and this request asks "
            f"{', '.join(m.address for m in models.all)}: begin another session, with what was committed as its "
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
    """Append the space before the next candidate: as after a context, it is read and not scored."""
    adds_space = loaded.tokenizer.leading_space  # the next word's first token has its own space
    return text if adds_space or not text or text[-1].isspace() else text + " "


def _read_commits(
    loaded: LoadedModel, previous: Sequence[StoredState], texts: Sequence[TokenIds]
) -> Work[Any, list[StoredState]]:
    """Read texts, each after its own state; return the states after them."""
    states = [old.state for old in previous]
    for rows in chunks_by_length(np.array([len(text) for text in texts], dtype=np.int64)):
        tokens, lengths = pad_sequences([texts[row] for row in rows])
        if tokens.size:
            state = concatenate_states([previous[row].state for row in rows])
            after = (yield from Read(loaded.model, state, tokens, lengths, STATE)).state
            for index, row in enumerate(rows):
                states[row] = materialize(after.select(np.array([index])))  # it must own its memory
            yield None
    return [
        StoredState(loaded, state, old.num_tokens + len(ids), int(ids[-1]) if len(ids) else old.last_token)
        for state, old, ids in zip(states, previous, texts, strict=True)
    ]


MAX_COMPARED = 1000
"""Candidates of a list at most where all pairs are compared, for risks, agreement and confidences."""


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOptions:
    """Options of reranking.

    Attributes:
        weighting: weights of features.
        scoring: options of the scoring models.
        posterior_scale: factor of the totals in the posteriors.
        mbr: utility to maximise in expectation under the posteriors; None ranks by the total.
        confidences: whether to report the confidence of each word of the best candidate.
        detail: level of detail of reported scores.
        drop_duplicates: whether to drop a candidate with the text of an earlier one.
        top: number of candidates of each list to report; None for all.
        commit_eos: whether to read `</s>` after a commit.
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
        """Return whether all pairs of candidates of a list are compared."""
        consensus = (name for name in self.weighting.weights if name.startswith(reranking_features.CONSENSUS))
        return self.mbr is not None or self.confidences or any(consensus)


class RerankItem(NamedTuple):
    """A list to re-rank.

    Attributes:
        given: the list; its context is empty in a session.
        turn: its session parameters; None without a session.
    """

    given: CandidateList
    turn: Turn | None = None


class RankedList(NamedTuple):
    """A list in its new order.

    Attributes:
        given: the list, without dropped duplicates.
        indices: original indices of its candidates [C].
        ranking: its order and posteriors.
        totals: of the candidates in the order given [C].
        feature_names: names of the computed features.
        feature_values: of the candidates in the order given [C, F].
        utilities: expected utilities of the candidates in the order given [C]; None if not requested.
        confidences: of the best candidate's words; empty if not requested.
        tokens: token scores of one candidate, by its index as given; None without a main model.
        session: session handle for the next list; None without a session.
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
        """Index of the best candidate in the original list."""
        return int(self.indices[self.ranking.order[0]])

    def features(self, index: int) -> dict[str, float]:
        """Return the features, given and computed, of the candidate at an index."""
        computed = zip(self.feature_names, self.feature_values[index].tolist(), strict=True)
        return {**self.given.candidates[index].features, **dict(computed)}


def rerank(
    models: ScoringModels,
    items: Sequence[RerankItem],
    options: RerankOptions,
    limits: Limits,
    *,
    states: OwnedStateStore | None = None,
    name: Callable[[int], str] = "lists[{}].".format,
) -> Work[Any, list[RankedList]]:
    """Score every candidate as a whole sentence after its context, and re-rank each list. A use case.

    Args:
        models: the scoring models.
        items: lists, at least one.
        options: of reranking.
        limits: of one text with its context.
        states: store of sessions; None without sessions.
        name: prefix of `candidates` in a message about list i.

    Raises:
        InvalidInputError: a weight has no feature, a feature is wrong, a list is too long for pairwise comparison,
            or a session cannot be resumed.
        ContextLengthError: a candidate with its context has too many tokens.
        UnsupportedParameterError: there is a context, and a model reads from right to left; or
            unnormalised scores are requested of a model not trained for them.
        StatesFullError: the store has no capacity for another session.
    """
    given = _checked_columns(models, [item.given for item in items], options, name)
    yield None
    resumed = None
    if states is not None and any(item.turn for item in items):
        bos, eos, turns = options.scoring.bos, options.commit_eos, [item.turn for item in items]
        resumed = yield from resume_sessions(models, turns, states, limits, bos=bos, eos=eos, name=name)
    unique = [
        _without_duplicates(item.given) if options.drop_duplicates else _unfiltered(item.given)
        for item in items
    ]
    given = (
        _filter_columns(given, unique, [item.given for item in items]) if options.drop_duplicates else given
    )
    lists = [item.given for item in unique]
    starts = resumed.starts if resumed else NO_START_STATES
    scores = yield from score_candidates(models, lists, limits, options.scoring, starts=starts, prefix=name)
    features = scores.features.normalised(options.weighting.length_exponent)
    features = yield from _with_derived(lists, features, options, name)
    totals = options.weighting.totals(features.matrix(list(options.weighting.weights), given))
    ranked = yield from _rank_lists(unique, features, totals, scores, options)
    if resumed is None:
        return ranked
    return [item._replace(session=s) for item, s in zip(ranked, resumed.sessions(), strict=True)]


class _FilteredList(NamedTuple):
    """A list, possibly without duplicates, and the original indices of its candidates."""

    given: CandidateList
    indices: npt.NDArray[np.int64]


def _unfiltered(given: CandidateList) -> _FilteredList:
    return _FilteredList(given, np.arange(len(given.candidates)))


def _without_duplicates(given: CandidateList) -> _FilteredList:
    """Keep the first candidate of each text."""
    first: dict[str, int] = {}
    for index, candidate in enumerate(given.candidates):
        first.setdefault(candidate.text, index)
    if len(first) == len(given.candidates):
        return _unfiltered(given)
    candidates = tuple(given.candidates[index] for index in first.values())
    unique = CandidateList(given.name, given.context, candidates, given.references, given.continuation)
    return _FilteredList(unique, np.array(list(first.values())))


def _filter_columns(
    given: Mapping[str, Floats], filtered: Sequence[_FilteredList], lists: Sequence[CandidateList]
) -> dict[str, Floats]:
    """Select the given features of the remaining candidates."""
    offsets = offsets_of(lists)
    rows = np.concatenate([first + item.indices for first, item in zip(offsets, filtered, strict=False)])
    return {name: column[rows] for name, column in given.items()}


def _check_needs_no_model(weights: Mapping[str, float]) -> None:
    """Refuse weights of the main model's features: a profile can name no model and have such weights."""
    computed = {*MODEL_FEATURES, LM_SUM}
    for name in weights:
        if name in computed or base_feature(name) in computed or needs_tokens(name):
            raise InvalidInputError(
                f"weights.{name} is given, but no model scores the candidates; name one in `model`",
                parameter=f"weights.{name}",
            )


def _checked_columns(
    models: ScoringModels,
    lists: Sequence[CandidateList],
    options: RerankOptions,
    name: Callable[[int], str],
) -> dict[str, Floats]:
    """Check weights and given features before scoring; return the columns of given features with weights."""
    options.weighting.check(models.extra)
    if not models.parts:
        _check_needs_no_model(options.weighting.weights)
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
    """Add the derived features that have weights."""
    names = tuple(feature for feature in options.weighting.weights if reranking_features.is_derived(feature))
    if not names:
        return features
    parts = []
    read = 0
    for number, item in enumerate(lists):
        of_list = features.of_list(number)
        parts.append((yield from derived_in_steps(item, of_list, names, place=name(number))))
        read += len(item.candidates)
        if read > CANDIDATES_PER_STEP:
            read = 0
            yield None
    return features.extended(names, np.concatenate(parts))


def _rank_lists(
    filtered: Sequence[_FilteredList],
    features: ListFeatures,
    totals: Floats,
    scores: CandidateScores,
    options: RerankOptions,
) -> Work[Any, list[RankedList]]:
    ranked = []
    done = 0
    for number, (given, indices) in enumerate(filtered):
        first, end = features.offsets[number : number + 2].tolist()
        item = yield from _rank_list(given, indices, features, totals[first:end], first, scores, options)
        ranked.append(item)
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
        None if tokens is None else (lambda index: tokens(first + index)),
        None,
    )


RerankOutcome: TypeAlias = RankedList | LanguageModelError
"""Outcome of a line; an error for an invalid one."""

RerankLine: TypeAlias = RerankItem | InvalidInputError
"""A list, or the error of its line."""


def rerank_lines(
    models: ScoringModels,
    lines: Iterator[RerankLine],
    options: RerankOptions,
    limits: Limits,
    *,
    write: Callable[[RerankOutcome], Iterator[bytes]],
    states: OwnedStateStore | None = None,
) -> Work[bytes, None]:
    """Re-rank a stream of lists; an invalid one does not stop the rest. A use case.

    Args:
        models: the scoring models.
        lines: lists, or the errors of their lines.
        options: of reranking.
        limits: of one text with its context.
        write: serialises an outcome in pieces, each in a bounded time.
        states: store of sessions.

    Yields:
        Events: pieces of the reply, in order.
    """
    while batch := (yield from read_batch(lines)):
        written = bytearray()
        for outcome in (yield from rerank_batch(models, batch, options, limits, states=states)):
            for piece in write(outcome):
                written += piece
                if len(written) >= BYTES_PER_PIECE:
                    yield bytes(written)
                    written.clear()
        yield bytes(written)


def read_batch(lines: Iterator[RerankLine]) -> Work[Any, list[RerankLine]]:
    """Take the next batch of lines to re-rank together; empty at the end. A use case."""
    batch: list[RerankLine] = []
    count = read = 0
    for line in lines:
        batch.append(line)
        size = len(line.given.candidates) if isinstance(line, RerankItem) else 1
        count, read = count + size, read + size
        if count >= CANDIDATES_PER_BATCH or len(batch) >= LINES_PER_BATCH:
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
    """Re-rank lines together, or one by one if any is invalid, so that only that line fails.

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
    """Return the prefix of `candidates` in messages where a line is one list: empty."""
    return ""
