"""Reranking of one candidate list or a stream by a log-linear combination of features.

An invalid list of a stream fails alone. In a session, a list's candidates follow the text that the
client committed before: a session is a handle to one state per model, so its cost does not grow
with that text. Sessions are immutable, so a client may send a list again, with the same or
another commit.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from models.arrays import Float64s, Int64s, TokenIds
from models.calls import map_in_steps
from models.completion.token_trie import NO_TOKENS
from models.errors import InvalidInputError
from models.language_model import STATE
from models.normaliser import Writing, written
from models.phrases import is_phrase_feature
from models.reranking.candidates import CandidateList
from models.reranking.corrections import CorrectionTable, corrections_of, origins_of, with_corrections
from models.reranking.features import (
    NUM_TOKENS,
    ListFeatures,
    check_given,
    given_column,
    needs_main_model,
    offsets_of,
    with_derived,
)
from models.reranking.mbr import (
    WordPosterior,
    expected_utilities,
    word_confidences,
)
from models.reranking.ranking import rank_by, scaled_posteriors
from models.vocabulary import EOS
from service.engine.job import Work
from service.hosting.loaded_model import LoadedModel
from service.hosting.state_store import StoredState
from service.schemas.replies import DocumentsReply, RankedDocument, RankedText, Usage, to_json
from service.use_cases.candidate_features import (
    NO_START_STATES,
    CandidateScores,
    StartStates,
    TokenScores,
    score_candidates,
)
from service.use_cases.candidate_texts import reads_forms, split_at_space
from service.use_cases.constants import CANDIDATES_PER_STEP, MAX_PAIR_CHARACTERS
from service.use_cases.inputs import Limits, check_reads_forward, no_context_error
from service.use_cases.prefill import token_runs
from service.use_cases.rerank_request import DocumentsRequest, RerankItem, RerankJob, Turn
from service.use_cases.score import Detail, token_scores, word_scores
from service.use_cases.sequence_scoring import ScoreItem, score_pairs
from service.use_cases.states import OwnedStateStore, continue_states, ids_after, stored_states

_HANDLE_SEPARATOR = ","


def store_sessions(
    starts: StartStates, turns: Sequence[Turn | None], state_store: OwnedStateStore
) -> list[str | None]:
    """Store new states; return each list's handle for the next list, unchanged without a commit.

    Args:
        starts: states before the lists, from `resume_sessions`.
        turns: session parameters of each list; None without a session.
        state_store: store of the states.

    Raises:
        StatesFullError: the store is full; none is stored.
    """
    both = [*zip(starts.of_lists, turns, strict=True)]
    new = sorted({n for n, turn in both if turn and turn.commit is not None and n is not None})
    to_keep = [states[n] for n in new for states in starts.of_models]
    handles = iter(state_store.store.keep(state_store.owner, to_keep))
    added = {n: _HANDLE_SEPARATOR.join(next(handles) for _ in starts.of_models) for n in new}
    return [None if turn is None or n is None else added.get(n, turn.session) for n, turn in both]


def resume_sessions(
    job: RerankJob,
    turns: Sequence[Turn | None],
    state_store: OwnedStateStore,
    limits: Limits,
    name: Callable[[int], str],
) -> Work[Any, StartStates]:
    """Find states of sessions and read committed texts.

    Args:
        job: models and settings.
        turns: session parameters of each list; None without a session.
        state_store: store of the states.
        limits: of the text read by a state.
        name: of `session` in a message about list i.

    Raises:
        UnknownStateError: a session was freed or expired.
        StateElsewhereError: another process has the session.
        InvalidInputError: a session began with other models than the request's.
        ContextLengthError: the committed text is too long.
        UnsupportedParameterError: a model reads backward.
        StatesFullError: the store is full.
    """
    models, eos = job.models.all, job.settings.commit_eos
    numbers: dict[Turn, int] = {}
    of_lists = [None if turn is None else numbers.setdefault(turn, len(numbers)) for turn in turns]
    names = {of_lists[i]: name(i) for i in reversed(range(len(turns)))}
    num_kept = len(models) * sum(turn.commit is not None for turn in numbers)
    state_store.store.check_capacity(state_store.owner, num_kept)
    found = [_session_states(job, turn, state_store, names[n]) for turn, n in numbers.items()]
    of_models = []
    for number, loaded in enumerate(models):
        check_reads_forward(loaded)
        previous = [states[number] for states in found]
        texts = [
            _commit_ids(previous[n], turn, names[n], limits, job.models.form, eos=eos)
            for turn, n in numbers.items()
        ]
        _, states = yield from continue_states(loaded, previous, texts, STATE)
        of_models.append((yield from stored_states(loaded, states, texts, previous)))
    return StartStates(of_lists, of_models)


def _session_states(job: RerankJob, turn: Turn, state_store: OwnedStateStore, name: str) -> list[StoredState]:
    """Find each model's state of a session, or the start state of a new one."""
    models, bos = job.models.all, job.settings.bos
    if turn.session is None:
        return [
            StoredState(loaded, loaded.model.initial_state(1) if bos else loaded.model.empty_state(1))
            for loaded in models
        ]
    states = state_store.store.find(
        state_store.owner, turn.session.split(_HANDLE_SEPARATOR), parameter=f"{name}session"
    )
    found = [state.loaded for state in states]
    if len(found) != len(models) or any(a is not b for a, b in zip(found, models, strict=True)):
        raise InvalidInputError(
            f"{name}session was started with {', '.join(m.address for m in found)}, but this request uses "
            f"{', '.join(m.address for m in models)} (other models, or reloaded since); start a new session, and "
            "send all text committed so far as its first commit",
            parameter=f"{name}session",
        )
    return states


def _commit_ids(
    before: StoredState, turn: Turn, name: str, limits: Limits, form: Writing, *, eos: bool
) -> TokenIds:
    if turn.commit is None:
        return NO_TOKENS
    limits.check_characters(turn.commit, parameter=f"{name}commit")
    text = written(turn.commit, form) if reads_forms(before.loaded) else turn.commit
    if text and not (eos or text[-1].isspace() or before.loaded.tokenizer.joins_spaces):
        text += " "  # its own token, before the next candidate; read but not scored, as after a context
    ids = ids_after(before, text)
    if eos:
        ids = np.append(ids, EOS)
    limits.check_length(before.num_tokens + len(ids), parameter=f"{name}commit")
    return ids


_WORK_PER_CORRECTED = 512
"""Work of correcting a candidate, in characters read."""

MAX_COMPARED = 1000
"""Maximum candidates of a list if all pairs are compared, for risks, agreement and confidences."""


_FilteredList: TypeAlias = tuple[CandidateList, Int64s]
"""A list, possibly without duplicates or with corrected candidates, and the original indices of its candidates."""


class RankedList(NamedTuple):
    """A list in its new order.

    Attributes:
        given: the list, without dropped duplicates and with corrected candidates.
        indices: original indices of its candidates [C].
        order: positions of its candidates in `given`, best first [C].
        posteriors: in the order of `given` [C].
        totals: in the order of `given` [C].
        computed: computed features in the order of `given`.
        utilities: expected utilities in the order of `given` [C]; None unless requested.
        confidences: of the best candidate's words; empty unless requested.
        tokens: returns token scores of the candidate at a position in `given`; None without a main model.
        session: handle for the next list; None without a session.
    """

    given: CandidateList
    indices: Int64s
    order: Int64s
    posteriors: Float64s
    totals: Float64s
    computed: ListFeatures
    utilities: Float64s | None
    confidences: list[WordPosterior]
    tokens: Callable[[int], TokenScores] | None
    session: str | None = None

    def features(self, index: int) -> dict[str, float]:
        """Return the features, given and computed, of the candidate at an index."""
        computed = zip(self.computed.names, self.computed.values[index].tolist(), strict=True)
        return {**self.given.candidates[index].features, **dict(computed)}


def rerank(
    job: RerankJob,
    items: Sequence[RerankItem],
    limits: Limits,
    *,
    states: OwnedStateStore | None = None,
    name: Callable[[int], str] = "lists[{}].".format,
) -> Work[Any, list[RankedList]]:
    """Score candidates as complete sentences after their contexts, and re-rank each list.

    Args:
        job: models and settings.
        items: lists to re-rank, at least one.
        limits: of one text with its context.
        states: store of sessions; None without sessions.
        name: of `candidates` in a message about list i.

    Raises:
        InvalidInputError: a weight has no feature, a feature is invalid, a list is too long to compare
            pairwise, or a session cannot be resumed.
        ContextLengthError: a candidate with its context is too long.
        UnsupportedParameterError: there is a context and a model reads backward, or
            unnormalised scores are requested of a model not trained for them.
        StatesFullError: the store is full.
    """
    models, settings = job.models, job.settings
    given = _checked_columns(job, [item.given for item in items], name)
    yield None
    starts, turns = NO_START_STATES, [item.turn for item in items]
    if states is not None and any(turns):
        starts = yield from resume_sessions(job, turns, states, limits, name)
    filtered = [_filter_candidates(item.given, drop_duplicates=settings.drop_duplicates) for item in items]
    if job.corrections is not None:
        filtered = yield from _add_corrected(filtered, job.corrections, starts, limits)
    if settings.drop_duplicates or job.corrections is not None:
        offsets = offsets_of([item.given for item in items])
        rows = np.concatenate(
            [first + indices for first, (_, indices) in zip(offsets, filtered, strict=False)]
        )
        given = {name: column[rows] for name, column in given.items()}
    lists = [kept for kept, _ in filtered]
    scores = yield from score_candidates(
        models,
        lists,
        limits,
        bos=settings.bos,
        eos=settings.eos,
        score_mode=settings.score_mode,
        starts=starts,
        phrases=job.phrases,
        prefix=name,
    )
    weighting = job.weighting
    features = scores.features.normalised(weighting.length_exponent)
    features = yield from with_derived(lists, features, weighting.weights, place=name)
    totals = weighting.totals(features.matrix(list(weighting.weights), given))
    ranked = yield from _rank_lists(filtered, features, totals, scores, job)
    if states is None or not any(turns):
        return ranked
    sessions = store_sessions(starts, turns, states)
    return [item._replace(session=session) for item, session in zip(ranked, sessions, strict=True)]


def _filter_candidates(given: CandidateList, *, drop_duplicates: bool) -> _FilteredList:
    """Keep the first candidate of each text, or all candidates."""
    if drop_duplicates:
        first: dict[str, int] = {}
        for index, candidate in enumerate(given.candidates):
            first.setdefault(candidate.text, index)
        if len(first) < len(given.candidates):
            candidates = tuple(given.candidates[index] for index in first.values())
            return replace(given, candidates=candidates), np.array(list(first.values()))
    return given, np.arange(len(given.candidates))


def _add_corrected(
    filtered: Sequence[_FilteredList], table: CorrectionTable, starts: StartStates, limits: Limits
) -> Work[Any, list[_FilteredList]]:
    """Append corrected candidates, each with the original index of its source."""

    def correct(number: int) -> _FilteredList:
        given, indices = filtered[number]
        state = starts.of_lists[number] if starts.of_lists else None
        read = 0 if state is None else max(states[state].num_tokens for states in starts.of_models)
        corrected = with_corrections(given, table, limits.max_tokens_per_sequence - read)
        return corrected, indices[origins_of(corrected.candidates)]

    sizes = [_WORK_PER_CORRECTED * len(given.candidates) for given, _ in filtered]
    return (yield from map_in_steps(range(len(filtered)), correct, size=sizes.__getitem__))


def _checked_columns(
    job: RerankJob, lists: Sequence[CandidateList], name: Callable[[int], str]
) -> dict[str, Float64s]:
    """Check weights and given features before scoring; return the given columns with weights."""
    models = job.models
    job.weighting.check(models.extra)
    for feature in job.weighting.weights if not models.parts else ():
        if needs_main_model(feature):  # a profile without models can have such weights
            raise InvalidInputError(
                f"weights.{feature} is given, but no model scores the candidates; name one in `model`",
                parameter=f"weights.{feature}",
            )
    check_given(lists, models=models.extra, place=name)
    longest = max(range(len(lists)), key=lambda i: len(lists[i].candidates))
    count = len(lists[longest].candidates)
    if job.is_pairwise and count > MAX_COMPARED:
        raise InvalidInputError(
            f"{name(longest)}candidates has {count} entries; for pairwise comparison (mbr, confidences, consensus), "
            f"at most {MAX_COMPARED} are accepted in a list",
            parameter=f"{name(longest)}candidates",
        )
    columns = {feature: given_column(lists, feature, place=name) for feature in job.weighting.given}
    absent = {feature for feature in job.weighting.weights if is_phrase_feature(feature)}
    zeros = np.zeros(sum(len(one.candidates) for one in lists))
    return columns | dict.fromkeys(absent.difference(job.phrases.features), zeros)


def _rank_lists(
    filtered: Sequence[_FilteredList],
    features: ListFeatures,
    totals: Float64s,
    scores: CandidateScores,
    job: RerankJob,
) -> Work[Any, list[RankedList]]:
    ranked = []
    done = 0
    for number, (given, indices) in enumerate(filtered):
        first, end = features.offsets[number : number + 2].tolist()
        texts = [candidate.text for candidate in given.candidates] if job.is_pairwise else []
        posteriors = scaled_posteriors(totals[first:end], job.posterior_scale)
        values, utilities = totals[first:end], None
        if job.settings.mbr is not None:
            values = utilities = yield from expected_utilities(texts, posteriors, job.settings.mbr)
        order = rank_by(values)
        shown = features.of_lists(number, number + 1)
        if job.phrases:
            shown = shown.without_absent_phrases()
        confidences: list[WordPosterior] = []
        if job.settings.confidences:
            confidences = yield from word_confidences(texts, posteriors, int(order[0]))
        ranked.append(
            RankedList(
                given,
                indices,
                order,
                posteriors,
                totals[first:end],
                shown,
                utilities,
                confidences,
                scores.tokens_from(first),
            )
        )
        done += len(indices)
        if job.is_pairwise or done > CANDIDATES_PER_STEP:
            done = 0
            yield None
    return ranked


def rank_documents(
    loaded: LoadedModel, request: DocumentsRequest, limits: Limits
) -> Work[Any, DocumentsReply]:
    """Rank documents by the query's probability after each, without `</s>`.

    Raises:
        InvalidInputError: there are too many documents, or the query has no token.
        ContextLengthError: a document with the query is too long.
        UnsupportedParameterError: the model reads backward.
    """
    texts = [given if isinstance(given, str) else given.text for given in request.documents]
    limits.check_count(len(texts), parameter="documents")
    if loaded.reads_backward:
        raise no_context_error(loaded, parameter="query")
    pairs = []
    for index, text in enumerate(texts):
        context, query = split_at_space(loaded, text, request.query)
        pairs.append(ScoreItem(f"documents[{index}]", query, context).checked())
    num_tokens, parts = 0, []
    for run in token_runs([pair.size() for pair in pairs], MAX_PAIR_CHARACTERS):
        sequences, scores = yield from score_pairs(loaded, pairs[run], limits)
        num_tokens += sum(len(context) + len(text) for context, text in sequences)
        parts.append(scores)
    totals = np.concatenate(parts)
    posteriors = scaled_posteriors(totals).tolist()
    results = [
        RankedDocument(
            index,
            posteriors[index],
            float(totals[index]),
            RankedText(texts[index]) if request.return_documents else None,
        )
        for index in rank_by(totals)[: request.top_n].tolist()
    ]
    usage = Usage(num_tokens, 0, num_tokens)
    return DocumentsReply(f"rerank-{uuid.uuid4().hex}", "list", loaded.address, results, usage)


_BATCH_CANDIDATES = 128
"""Candidates in one chunk; other requests run between chunks."""


def rerank_reply_chunks(lists: Sequence[RankedList], job: RerankJob, limits: Limits) -> Iterator[bytes]:
    """Yield the JSON of a reply.

    Dictionaries instead of `RerankReply` objects take a third of the time per candidate.

    Raises:
        InvalidInputError: the reply lists too many tokens.
    """
    detail = job.settings.detail
    if detail is not Detail.NONE and job.models.parts:
        limits.check_entries(
            int(sum(ranked.computed.column(NUM_TOKENS).sum() for ranked in lists)),
            parameter="detail",
            description=f"detail is {detail.value!r} for all candidates of {len(lists)} lists",
            instead="send lines, application/x-ndjson, for more",
        )
    head = {
        "model": job.models.main_address,
        "models": {name: loaded.address for name, loaded in job.models.extra.items()},
        "weights": dict(job.weighting.weights),
        "length_exponent": job.weighting.length_exponent,
        "posterior_scale": job.posterior_scale,
        **({"tuned_on": job.tuned_on} if job.tuned_on else {}),
    }
    yield to_json(head)[:-1] + b',"lists":['
    for number, ranked in enumerate(lists):
        if number:
            yield b","
        yield from list_chunks(ranked, job)
    yield b"]}"


def list_chunks(ranked: RankedList, job: RerankJob, *, tuned_on: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield a list's JSON, best candidate first; in a stream with `tuned_on`, if not empty."""
    head: dict[str, Any] = {"id": ranked.given.name, "unchanged": int(ranked.order[0]) == 0}
    if tuned_on:
        head["tuned_on"] = tuned_on
    if ranked.given.problems:
        head["problems"] = ranked.given.problems
    if ranked.session is not None:
        head["session"] = ranked.session
    if job.settings.confidences:
        head["confidences"] = [word._asdict() for word in ranked.confidences]
    yield to_json(head)[:-1] + b',"ranking":['
    count = len(ranked.order[: job.settings.top])
    for first in range(0, count, _BATCH_CANDIDATES):
        part = slice(first, min(first + _BATCH_CANDIDATES, count))
        yield (b"," if first else b"") + to_json(_candidates(ranked, part, job))[1:-1]
    yield b"]}"


def _candidates(ranked: RankedList, part: slice, job: RerankJob) -> list[dict[str, Any]]:
    order = ranked.order[part]
    positions = order.tolist()
    candidates, names = ranked.given.candidates, ranked.computed.names
    written: list[dict[str, Any]] = [
        {
            "index": index,
            "text": candidates[position].text,
            "total": total,
            "posterior": posterior,
            "features": {**candidates[position].features, **dict(zip(names, values, strict=True))},
        }
        for position, index, total, posterior, values in zip(
            positions,
            ranked.indices[order].tolist(),
            ranked.totals[order].tolist(),
            ranked.posteriors[order].tolist(),
            ranked.computed.values[order].tolist(),
            strict=True,
        )
    ]
    if job.corrections is not None:
        masses = _correction_posteriors(ranked)
        for fields, position in zip(written, positions, strict=True):
            if corrections := corrections_of(candidates[position]):
                pairs = [(one.heard, one.written) for one in corrections]
                fields["corrections"] = [
                    {"heard": h, "written": w, "posterior": masses[h, w]} for h, w in pairs
                ]
    if ranked.utilities is not None:
        for fields, utility in zip(written, ranked.utilities[order].tolist(), strict=True):
            fields["expected_utility"] = utility
    detail = job.settings.detail
    if detail is not Detail.NONE and ranked.tokens is not None:
        scores_of = token_scores if detail is Detail.TOKEN else word_scores
        for fields, position in zip(written, positions, strict=True):
            fields[f"{detail.value}s"] = scores_of(job.models.parts[0], *ranked.tokens(position))
    return written


def _correction_posteriors(ranked: RankedList) -> dict[tuple[str, str], float]:
    """Sum the posteriors of all candidates with a correction."""
    posteriors: defaultdict[tuple[str, str], float] = defaultdict(float)
    for candidate, posterior in zip(ranked.given.candidates, ranked.posteriors.tolist(), strict=True):
        for pair in {(correction.heard, correction.written) for correction in corrections_of(candidate)}:
            posteriors[pair] += posterior
    return posteriors
